"""State what a prediction assumes, as one value that each entry point builds from its arguments and passes on.

`predict`, the callback, the what-ifs and the command line each make `Assumptions` once; whatever computes takes the
value. A new assumption is a field with its sentence here, and an argument of the entry points that offer it::

    assumptions = Assumptions(strategy=strategy_of("fsdp"), usd_per_hour=2.0)
    predict_workload(trace, layouts_of(["8xL4"]), workload, assumptions)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar, final

from lightning_predict.checked import shown
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import Charges, UserPrice, check_price
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.extensions.embeddings.tables import Skew
from lightning_predict.kernels.choice import check_method
from lightning_predict.kernels.fabric import CATALOGUE, Interconnect
from lightning_predict.run.history import HistoryRecord
from lightning_predict.timeline.host import Host, host_of
from lightning_predict.tracing.recorded_on import check_release
from lightning_predict.weights.source import AnyWeights, weights_source

Door = TypeVar("Door")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """State what a prediction assumes of machines, their links and prices, and how they share the work.

    Attributes:
        strategy: How the GPUs of a layout share the work: `ddp`, `fsdp`, `zero2`, ..., with options as in
            `fsdp,tensor=8` (see `distributed/strategy.py`); of it, one GPU knows `accumulate` alone.
        method: How kernels are predicted: `auto`, `mlp` or `wave` (see `kernels/choice.py`).
        weights: Folder, file or https:// address of model weights, or a `weights.source.WeightsSource` with an address,
            a cache folder, or to stay offline; None takes the configured address, the cache and those that come with
            the package.
        offers: Offers to take prices from; None takes those that come with the package.
        usd_per_hour: Your own price of one GPU, the same for all or by name; it comes before the offers.
        history: Earlier runs; those of the same model on the same GPU correct its prediction (see `run/history.py`).
        interconnect: Bandwidths of the links between GPUs, where you know them; None takes the catalogue's figures.
        release: Release of torch that the predicted run uses, as `1.13` or `2.6.0`: it decides kernels, the optimizer's
            launches and how gradients are cleared; None for that of the trace, and for a step whose kernels were
            measured.
        host: How fast the host of the predicted GPUs launches: a class (`fast`, `median`, `slow`, see
            `timeline/host.py`), used where the step's own host was not timed; or a factor on the time of the host
            in use, below 1 for a faster one. None knows nothing of it.
        zipf_alpha: How unevenly rows of embedding tables are asked for: the exponent of Zipf's law, or one by the name
            of a table's module; None for equal chances.
        cores_per_node: Processor cores of each machine, which the loaders of its GPUs share; None: each loader has
            enough cores.
        charges: What a rented machine costs beside training: `Charges(setup_minutes=20, storage_usd=3)` of
            `lightning_predict.cost.prediction`; None: nothing. The GPU in use is rented already, and has none.

    Raises:
        InvalidArgumentError: An unknown method, a price that is not above 0, an address that cannot be used, something
            that is not an Interconnect, a release that is not one, or a host that is neither a class nor a number.
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

    def __post_init__(self) -> None:
        check_method(self.method)
        check_price(self.usd_per_hour)
        weights_source(self.weights)
        if not isinstance(self.interconnect, Interconnect | None):
            raise InvalidArgumentError(
                f"interconnect={shown(self.interconnect)} is not an Interconnect of lightning_predict.kernels.fabric; "
                "give one, or None for what the names of the GPUs promise."
            )
        check_release(self.release)
        host_of(self.host)

    @property
    def host_assumed(self) -> Host:
        """What the class or the factor says of the host."""
        return host_of(self.host)

    @property
    def links(self) -> Interconnect:
        """The links between GPUs: the user's figures, else the catalogue's."""
        return self.interconnect or CATALOGUE


_ENTRY: Final = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)
_REFERENCE: Final = re.compile(r"^( *)(\w+): See `Assumptions`\.$", re.MULTILINE)


def documents_assumptions(door: Door) -> Door:
    """Fill in a docstring's references to `Assumptions`, so that `help` is complete and each sentence is written once.

    Args:
        door: A function or class whose docstring has lines such as `method: See `Assumptions`.`

    Returns:
        The same.
    """
    if not (door.__doc__ and Assumptions.__doc__):  # python -OO has none
        return door
    entries = dict(_ENTRY.findall(inspect.cleandoc(Assumptions.__doc__)))

    def filled(found: re.Match[str]) -> str:
        indent, name = found.groups()
        return f"{indent}{name}: " + re.sub(r"\n {8}", f"\n{indent}    ", entries[name])

    door.__doc__ = _REFERENCE.sub(filled, door.__doc__)
    return door
