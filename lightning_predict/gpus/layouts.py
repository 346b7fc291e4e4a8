"""`Layout`: so many GPUs of one kind in each of so many machines, and the grammar that names it.

`"T4"` is one GPU, `"8xL4"` a machine of eight, `"2x8xH100-SXM-80GB"` two such machines. The name is the key of
predictions, so it is canonical: `"1x8xL4"` is `8xL4`, `"1xT4"` is `T4`. Example::

    >>> layout = layout_of("2x8xH100")
    >>> layout.name, layout.nodes, layout.gpus_per_node, layout.count
    ('2x8xH100-SXM-80GB', 2, 8, 16)
    >>> layout_of("1xT4").name
    'T4'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.gpus.lookup import gpu as find_gpu
from lightning_predict.gpus.records import Gpu

_GRAMMAR: Final = re.compile(r"\s*(?:(?P<nodes>\d+)\s*[xX*]\s*)?(?P<per_node>\d+)\s*[xX*]\s*(?P<gpu>.*\S)\s*")

MOST_GPUS: Final = 65_536
"""Above this a layout is taken to be a slip of the pen; the largest runs that were published have fewer GPUs."""


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """GPUs of one kind in machines of one kind.

    Attributes:
        gpu: The GPU.
        gpus_per_node: GPUs of each machine that take part.
        nodes: Machines.
    """

    gpu: Gpu
    gpus_per_node: int = 1
    nodes: int = 1

    @property
    def count(self) -> int:
        """GPUs in all."""
        return self.gpus_per_node * self.nodes

    @property
    def name(self) -> str:
        """The name in the grammar, as short as it can be."""
        if self.nodes > 1:
            return f"{self.nodes}x{self.gpus_per_node}x{self.gpu.name}"
        return f"{self.gpus_per_node}x{self.gpu.name}" if self.gpus_per_node > 1 else self.gpu.name


def layout_of(name: str, *, num_nodes: int = 1) -> Layout:
    """The layout of this name.

    Args:
        name: A GPU by any of its names, `<GPUs>x<GPU>` or `<machines>x<GPUs>x<GPU>`.
        num_nodes: Machines, where the name does not say.

    Raises:
        UnknownGpuError: The GPU is not in the catalogue.
        InvalidArgumentError: A number that is zero or beyond reason, or two different numbers of machines.
    """
    if num_nodes < 1:
        raise InvalidArgumentError(f"num_nodes={num_nodes}; a layout has at least one machine.")
    parts = _GRAMMAR.fullmatch(name)
    if parts is None or _is_gpu(name):
        return Layout(find_gpu(name), 1, num_nodes)
    per_node = int(parts["per_node"])
    nodes = num_nodes if parts["nodes"] is None else int(parts["nodes"])
    example = f"'8x{parts['gpu']}' (one machine of eight) or '2x8x{parts['gpu']}' (two of them)"
    if per_node < 1 or nodes < 1 or per_node * nodes > MOST_GPUS:
        raise InvalidArgumentError(
            f"The layout {name!r} has {nodes} machine(s) of {per_node} GPU(s); expected between 1 and {MOST_GPUS:,} "
            f"GPUs, for example {example}."
        )
    if parts["nodes"] is not None and num_nodes not in (1, nodes):
        raise InvalidArgumentError(
            f"The layout {name!r} has {nodes} machine(s), but num_nodes={num_nodes}; say it in one of the two places."
        )
    try:
        found = find_gpu(parts["gpu"])
    except UnknownGpuError as error:
        raise UnknownGpuError(
            f"In the layout {name!r}: {error} A layout reads '<GPUs>x<GPU>' or '<machines>x<GPUs>x<GPU>'."
        ) from None
    return Layout(found, per_node, nodes)


def layouts_of(names: Sequence[str], *, num_nodes: int = 1) -> tuple[Layout, ...]:
    """The layouts of these names, in order, each once.

    Args:
        names: See `layout_of`.
        num_nodes: Machines of those that do not say.

    Raises:
        InvalidArgumentError: An empty list, a bare string, or as `layout_of`.
        UnknownGpuError: As `layout_of`.
    """
    if isinstance(names, str):
        raise InvalidArgumentError(f"gpus={names!r} is one string; give a list of names, for example [{names!r}].")
    if not names:
        raise InvalidArgumentError("gpus is empty; name at least one GPU, for example ['T4'].")
    return tuple({layout.name: layout for layout in (layout_of(name, num_nodes=num_nodes) for name in names)}.values())


def _is_gpu(name: str) -> bool:
    """A GPU's own name may look like a layout."""
    try:
        find_gpu(name)
    except UnknownGpuError:
        return False
    return True
