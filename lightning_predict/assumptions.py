"""`Assumptions`: everything that a prediction assumes about machines, links, prices and parallelism.

`predict`, the callback, the what-ifs and the command line each build one `Assumptions` from their arguments. To add an
assumption, add a field with its description here, and an argument to the functions that offer it::

    assumptions = Assumptions(strategy=parse_strategy("fsdp"), usd_per_hour=2.0)
    predict_workload(trace, layouts_of(["8xL4"]), workload, assumptions)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import Charges, UserPrice, check_price
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.record.torch_releases import check_release
from lightning_predict.weights.source import AnyWeights, weights_source

if TYPE_CHECKING:
    from lightning_predict.hardware.layouts import Layout
    from lightning_predict.hardware.own_rates import OwnRates
    from lightning_predict.hardware.records import Gpu
    from lightning_predict.kernels.interconnect import Interconnect
    from lightning_predict.record.trace import Trace
    from lightning_predict.run.history import HistoryRecord
    from lightning_predict.timeline.host import Host

Door = TypeVar("Door", bound=Callable[..., object])

Skew = float | Mapping[str, float]
"""Skew of the lookups in embedding tables: one exponent of Zipf's law, or an exponent per table name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Assumptions of a prediction about machines, links, prices and parallelism.

    Attributes:
        strategy: How the GPUs of a layout share the work: `ddp`, `fsdp`, `zero2`, ..., with options such as
            `fsdp,tensor=8` (see `layouts/strategy.py`). On a single GPU, only the option `accumulate` has an
            effect.
        weights: Folder, file or https:// address of model weights, or a `weights.source.WeightsSource`. None uses the
            configured address, the cache, and the package's weights.
        offers: Offers to take prices from; None uses the offers of the package.
        usd_per_hour: Your own price of one GPU, for all GPUs or by name. Your price takes precedence over the offers.
        history: Earlier runs. Runs of the same model on the same GPU correct the prediction (see `run/history.py`).
        interconnect: Bandwidths of the links between GPUs, if you know them; None uses the catalogue's bandwidths.
        release: PyTorch version of the predicted run, such as `1.13` or `2.6.0`. Kernels, the optimizer's launches and
            the clearing of gradients depend on the version. None uses the trace's version. The version has no effect on
            a step with measured kernels.
        kernels: Kernels that the job runs instead of PyTorch's eager ones, as a list or one text with commas, such as
            `compile` or `compile-blocks,flash_attention_3` (see `KERNELS` in `fusion/options.py`). A GPU that lacks
            some of the kernels is predicted without them, with a note. Steps with measured kernels have their own.
        host: CPU class of the predicted machines (`fast`, `median`, `slow`, see `timeline/host.py`), if the step's CPU
            time was not measured, or only under a profiler; refused otherwise. Or a factor on the measured CPU time,
            below 1 for a faster CPU. None assumes no class.
        zipf_alpha: Skew of the lookups in embedding tables: the exponent of Zipf's law, for all tables or by the name
            of the table's module. None assumes uniform lookups.
        cores_per_node: CPU cores of each machine, shared by the loaders of its GPUs. None assumes that each loader has
            enough cores.
        measured: Rates of large matmuls that your machine sustains, in FLOP/s by dtype: `{"bf16": 1103e12}`, or by GPU,
            `{"B200": {"bf16": 1103e12}}` (see `hardware/own_rates.py`). The rates correct the times of this GPU. None
            uses the catalogue's rates.
        charges: Costs of a rented machine other than training: `Charges(setup_minutes=20, storage_usd=3)` of
            `lightning_predict.cost.prediction`. None assumes no other costs. The GPU in use never has other costs,
            because it is already rented.
    """

    strategy: Strategy = field(default_factory=Strategy)
    weights: AnyWeights = None
    offers: Sequence[Offer] | None = None
    usd_per_hour: UserPrice = None
    history: Sequence[HistoryRecord] = ()
    interconnect: Interconnect | None = None
    release: str | None = None
    kernels: str | Sequence[str] = ()
    host: str | float | Host | None = None
    zipf_alpha: Skew | None = None
    cores_per_node: int | None = None
    charges: Charges | None = None
    measured: OwnRates | None = None

    def __post_init__(self) -> None:
        check_price(self.usd_per_hour)
        weights_source(self.weights)
        if self.interconnect is not None:
            _check_links(self.interconnect)
        check_release(self.release)
        if self.host is not None:
            _ = self.host_assumed  # raises an error for an unknown class
        _ = self.kernels_applied  # raises an error for an unknown name

    def with_own_rates(self, layouts: Sequence[Layout]) -> tuple[Layout, ...]:
        """Return the layouts with GPUs whose rates are the user's own (`measured`)."""
        if not self.measured:
            return tuple(layouts)
        from lightning_predict.hardware.own_rates import with_own_rates

        return with_own_rates(layouts, self.measured)

    @property
    def kernels_applied(self) -> tuple[str, ...]:
        """Names in `kernels` and of the strategy's file that change a step, in the order in which they are applied."""
        if not (self.kernels or self.strategy.kernels):
            return ()
        from lightning_predict.fusion.options import check_kernels

        return check_kernels(self.kernels or (self.strategy.kernels or "").split("+"))

    def of_step(self, trace: Trace) -> Assumptions:
        """Return the assumptions with the kernels that a step assumes, unless others were asked for.

        Kernels of the strategy's file do not apply to a step that runs compiled already.
        """
        if trace.assumed_kernels and not self.kernels:
            return replace(self, kernels=trace.assumed_kernels)
        if trace.compiled and self.strategy.kernels and not self.kernels:
            return self.without_kernels(self.kernels_applied)
        return self

    def kernels_missing_on(self, gpu: Gpu) -> tuple[str, ...]:
        """Return the kernels of `kernels_applied` that a GPU does not have."""
        if not self.kernels_applied:
            return ()
        from lightning_predict.fusion.options import missing_on

        return missing_on(gpu, self.kernels_applied)

    def without_kernels(self, names: Sequence[str]) -> Assumptions:
        """Return the assumptions with the other kernels, which count as asked for even if there are none."""
        others = tuple(name for name in self.kernels_applied if name not in names)
        return replace(self, kernels=others or ("eager",))

    @property
    def host_assumed(self) -> Host:
        """Parsed value of `host`, with the launches that remain under CUDA graphs."""
        from lightning_predict.timeline.host import GRAPH_HOST_SHARE, host_of

        host = host_of(self.host)
        return host.scaled(GRAPH_HOST_SHARE) if "cuda_graphs" in self.kernels_applied else host


def _check_links(interconnect: object) -> None:
    from lightning_predict.kernels.interconnect import Interconnect

    if not isinstance(interconnect, Interconnect):
        raise InvalidArgumentError(
            f"interconnect={shown(interconnect)} is not an Interconnect of lightning_predict.kernels.interconnect; "
            "give one, or None for the defaults of the GPUs."
        )


_ENTRY: Final = re.compile(r"^    (\w+): .*(?:\n        .*)*\n", re.MULTILINE)
_OTHERS: Final = "    The other arguments are fields of `Assumptions`.\n"


def fill_in_assumptions(door: Door) -> Door:
    """Decorator: replace the sentence `_OTHERS` of a docstring by the descriptions of the fields that it means."""
    if not (door.__doc__ and Assumptions.__doc__):  # python -OO strips docstrings
        return door
    text = inspect.cleandoc(door.__doc__)
    own = {entry[1] for entry in _ENTRY.finditer(text)}
    entries = {entry[1]: entry[0] for entry in _ENTRY.finditer(inspect.cleandoc(Assumptions.__doc__))}
    others = (entries[name] for name in inspect.signature(door).parameters if name in entries.keys() - own)
    door.__doc__ = text.replace(_OTHERS, "".join(others))
    return door
