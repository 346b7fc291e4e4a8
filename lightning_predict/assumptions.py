"""`Assumptions`: everything that a prediction assumes, as one value that each entry point builds from its arguments.

`predict`, the callback, the what-ifs and the command line each make one `Assumptions` and pass it on. A new assumption
is a field with its description here, and an argument of the entry points that offer it::

    assumptions = Assumptions(strategy=parse_strategy("fsdp"), usd_per_hour=2.0)
    predict_workload(trace, layouts_of(["8xL4"]), workload, assumptions)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar, final

from lightning_predict.checked import shown
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import Charges, UserPrice, check_price
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect
from lightning_predict.run.history import HistoryRecord
from lightning_predict.tracing.recorded_on import check_release
from lightning_predict.weights.source import AnyWeights, weights_source

if TYPE_CHECKING:
    from lightning_predict.gpus.layouts import Layout
    from lightning_predict.gpus.own_rates import OwnRates
    from lightning_predict.timeline.host import Host

Door = TypeVar("Door")

Skew = float | Mapping[str, float]
"""Skew of the lookups: one exponent of Zipf's law, or one for each table by its name."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Assumptions of a prediction about machines, links, prices and parallelism.

    Attributes:
        strategy: How the GPUs of a layout share the work: `ddp`, `fsdp`, `zero2`, ..., with options as in
            `fsdp,tensor=8` (see `distributed/strategy.py`). A single GPU uses only the option `accumulate`.
        method: How kernels are predicted: `auto`, `mlp` or `wave` (see `kernels/measured_scaling.py`).
        weights: Folder, file or https:// address of model weights, or a `weights.source.WeightsSource` with an address,
            a cache folder, or offline mode. None takes the configured address, the cache, and the weights that come
            with the package.
        offers: Offers to take prices from; None takes those that come with the package.
        usd_per_hour: Your own price of one GPU, the same for all or by name; it takes precedence over the offers.
        history: Earlier runs. Runs of the same model on the same GPU correct its prediction (see `run/history.py`).
        interconnect: Bandwidths of the links between GPUs, if you know them; None takes the catalogue's figures.
        release: PyTorch version of the predicted run, such as `1.13` or `2.6.0`. It decides kernels, the optimizer's
            launches and how gradients are cleared. None takes the trace's version; a step with measured kernels
            ignores this.
        host: CPU class of the predicted GPUs' machines (`fast`, `median`, `slow`, see `timeline/host.py`), used if the
            step's own CPU time was not measured. Or a factor on the CPU time of the recording machine, below 1 for a
            faster CPU. None assumes nothing.
        zipf_alpha: Skew of the lookups in embedding tables: the exponent of Zipf's law, one for all or by the name of a
            table's module. None assumes uniform lookups.
        cores_per_node: CPU cores of each machine, which the loaders of its GPUs share. None: each loader has enough
            cores.
        measured: Rates of large matmuls that your machine sustains, in FLOP/s by dtype: `{"bf16": 1103e12}`, or by GPU,
            `{"B200": {"bf16": 1103e12}}` (see `gpus/own_rates.py`). They correct this GPU's times. None takes the
            catalogue's.
        charges: Costs of a rented machine other than training: `Charges(setup_minutes=20, storage_usd=3)` of
            `lightning_predict.cost.prediction`. None: no such costs. The GPU in use is already rented, so it has none.

    Raises:
        InvalidArgumentError: An unknown method, a price that is not above 0, an address that cannot be used, an object
            that is not an Interconnect, an invalid release, or a host that is neither a class nor a number.
    """

    strategy: Strategy = field(default_factory=Strategy)
    method: str = "auto"
    weights: AnyWeights = None
    offers: Sequence[Offer] | None = None
    usd_per_hour: UserPrice = None
    history: Sequence[HistoryRecord] = ()
    interconnect: Interconnect | None = None
    release: str | None = None
    host: str | float | Host | None = None
    zipf_alpha: Skew | None = None
    cores_per_node: int | None = None
    charges: Charges | None = None
    measured: OwnRates | None = None

    def __post_init__(self) -> None:
        if self.method != "auto":
            from lightning_predict.kernels.measured_scaling import check_method

            check_method(self.method)
        check_price(self.usd_per_hour)
        weights_source(self.weights)
        if not isinstance(self.interconnect, Interconnect | None):
            raise InvalidArgumentError(
                f"interconnect={shown(self.interconnect)} is not an Interconnect of "
                "lightning_predict.kernels.interconnect; "
                "give one, or None for the defaults of the GPUs."
            )
        check_release(self.release)
        if self.host is not None:
            _ = self.host_assumed  # raises for an unknown class

    def with_own_rates(self, layouts: Sequence[Layout]) -> tuple[Layout, ...]:
        """Return the layouts with the user's own rates of their GPUs."""
        if not self.measured:
            return tuple(layouts)
        from lightning_predict.gpus.own_rates import with_own_rates

        return with_own_rates(layouts, self.measured)

    @property
    def host_assumed(self) -> Host:
        """Parsed CPU class or factor."""
        from lightning_predict.timeline.host import host_of

        return host_of(self.host)

    @property
    def links(self) -> Interconnect:
        """The links between GPUs: the user's figures, otherwise the catalogue's."""
        return self.interconnect or CATALOGUE


_ENTRY: Final = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)
_REFERENCE: Final = re.compile(r"^( *)(\w+): See `Assumptions`\.$", re.MULTILINE)


def fill_in_assumptions(door: Door) -> Door:
    """Fill in a docstring's references to `Assumptions`, so that `help` is complete and each text is written once.

    Args:
        door: A function or class whose docstring has lines such as `method: See `Assumptions`.`

    Returns:
        The same function or class.
    """
    if not (door.__doc__ and Assumptions.__doc__):  # python -OO strips docstrings
        return door
    entries = dict(_ENTRY.findall(inspect.cleandoc(Assumptions.__doc__)))

    def filled(found: re.Match[str]) -> str:
        indent, name = found.groups()
        return f"{indent}{name}: " + re.sub(r"\n {8}", f"\n{indent}    ", entries[name])

    door.__doc__ = _REFERENCE.sub(filled, door.__doc__)
    return door
