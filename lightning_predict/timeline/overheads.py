"""The five kinds of host time around an operation's launches (Lin et al., HiPC 2022), and where they come from.

    T1  between two operations            T4  one launch call
    T2  from the start of an operation    T5  between two launches of one operation;
        to its first launch                   the whole operation where it launches nothing
    T3  from its last launch to its end

A trace with host times gives each operation its own (`recorded_host.py`); the rest comes from a table by phase, of a
median host. Example::

    >>> kind = HostModel().of("forward")
    >>> round(kind.seconds(launches=1) * 1e6, 1)  # T1 + T2 + T4 + T3
    13.3
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, final

from lightning_predict.checked import shown
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.traffic import COMPILED_CALL
from lightning_predict.tracing.trace import Phase
from lightning_predict.units import microseconds_to_seconds


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Host seconds around one operation's launches.

    Attributes:
        between_operations: T1.
        before_first_launch: T2.
        after_last_launch: T3.
        launch: T4.
        between_launches: T5.
        without_launch: T5 of an operation that launches nothing.
    """

    between_operations: float
    before_first_launch: float
    after_last_launch: float
    launch: float
    between_launches: float
    without_launch: float

    def scaled(self, factor: float) -> Overheads:
        """Return the overheads of a host that takes `factor` times as long."""
        return Overheads(
            between_operations=self.between_operations * factor,
            before_first_launch=self.before_first_launch * factor,
            after_last_launch=self.after_last_launch * factor,
            launch=self.launch * factor,
            between_launches=self.between_launches * factor,
            without_launch=self.without_launch * factor,
        )

    def seconds(self, *, launches: int) -> float:
        """Sum the host time of one operation, the gap before it included."""
        if launches == 0:
            return self.between_operations + self.without_launch
        around = self.between_operations + self.before_first_launch + self.after_last_launch
        return around + launches * self.launch + (launches - 1) * self.between_launches


def _table_row(t1: float, t2: float, t3: float, t4: float, t5: float, without_launch: float) -> Overheads:
    t1, t2, t3, t4, t5, without_launch = map(microseconds_to_seconds, (t1, t2, t3, t4, t5, without_launch))
    return Overheads(
        between_operations=t1,
        before_first_launch=t2,
        after_last_launch=t3,
        launch=t4,
        between_launches=t5,
        without_launch=without_launch,
    )


SHARED_OVERHEADS: Final[Mapping[Phase, Overheads]] = {
    "forward": _table_row(2.1, 4.2, 1.4, 5.6, 1.4, 2.1),
    "backward": _table_row(2.8, 11.2, 2.8, 5.6, 2.8, 2.8),
    "optimizer": _table_row(2.8, 5.6, 1.4, 5.6, 1.4, 1.4),
    "other": _table_row(2.1, 4.2, 1.4, 5.6, 1.4, 2.1),
}
"""Microseconds by phase on a median host, for a run whose host was not profiled.

The sum of a forward operation of one launch, 13.3 us, and of one without, 4.2, were read off KernelBench's small
problems (version v0, 198 rows of 6 to 80 operations that wait for their launches; `HOST_SPREAD` names the hosts). How
each sum is divided among T1 to T5 is an assumption, as is the optimizer's share. An operation of the backward pass
takes twice the 11.2 us of one that only dispatches and launches: autograd's engine visits a node for each, and one more
for each gradient. Doubled, training takes 1.34, 1.23 and 1.12 times what the table says on three machines of two
sources that training steps of launches came from (torchvision's RTX 2080 Ti and RTX 3090, 2019-21; milabench's H100,
torch 2.6), where inference takes 1.09 and 1.14 on the former two; as it was, 1.94, 1.79 and 1.80. Any one of the three
chooses a factor between 2.0 and 2.7 without the others."""

LIBRARY_SECONDS: Final[Mapping[str, float]] = {
    name: microseconds_to_seconds(microseconds)
    for name, microseconds in {
        "aten::convolution": 35.0,
        "aten::convolution_backward": 70.0,
        "aten::native_batch_norm": 32.0,
        "aten::cudnn_batch_norm": 32.0,
        "aten::_native_batch_norm_legit": 32.0,
        "aten::native_batch_norm_backward": 36.0,
        "aten::cudnn_batch_norm_backward": 36.0,
        "aten::native_group_norm": 44.0,
        "aten::native_group_norm_backward": 50.0,
        "aten::native_layer_norm": 22.0,
        "aten::native_layer_norm_backward": 28.0,
        "aten::addmm": 24.0,
        "aten::mm": 10.0,
        "aten::bmm": 10.0,
        "aten::baddbmm": 24.0,
        "aten::logsumexp": 76.0,
        "aten::smooth_l1_loss": 20.0,
        COMPILED_CALL: 90.0,
    }.items()
}
"""What an operation takes beyond others of its phase on the same median host, before its first launch: descriptors,
algorithms and workspaces of libraries, several outputs, modules of Python code, and the launches inside of an operation
that is recorded as one.

Convolutions (+40 us), batch norm (+34), group norm (+46), addmm in its module (+26) and logsumexp (+76) were fitted
to the same rows of KernelBench; in a profiled training step of ResNet-50 on a V100 (1,715 operations) they are 2.7
(convolution) and 3.2 times (batch norm) a ReLU, and backward 3.5 and 2.3 times, which the table's values lie between.
A convolution's backward pass calls its library twice; the values of backward passes are doubled with their phase.
Compiled code checks its guards and wraps its arguments: KernelBench's small problems take 0.12 to 0.19 ms compiled on
the hosts of its T4s and L40Ss, however few kernels are left, and 0.06 on the one twice as fast.
Layer norm and products in the backward pass are ratios of such a profile alone (51 and 25 us where a copy takes 17)."""


HOST_SPREAD: Final = 2.0
"""Factor up and down around the time of a host that was not measured, for nine hosts in ten.

Measured over tabled time, the median of each machine that published steps which launches dominate: KernelBench's 0.53
(Lambda Labs), 0.54 (matx3), 1.02 (babel), 1.08 and 1.18 (two of modal's); torchvision's RTX 2080 Ti 1.04 (inference)
and 1.16 (training) and RTX 3090 1.20 and 1.15; milabench's H100 1.19. Their logarithms scatter by 0.32, and the rows of
one machine by 0.12: exp(1.645 * 0.34) = 1.75, and 2 holds the two fastest, too, around the middle in use, 1. The
study, with each machine judged by the others: `python -m benchmarks.accuracy FOLDER --of hosts`."""


@final
@dataclass(frozen=True, slots=True)
class Host:
    """What is assumed of the host that launches a step on another GPU.

    Attributes:
        factor: Its time over that of the host in use, where that one was timed, else over that of a median host.
        spread: Factor up and down around a host of this class, for nine in ten; None for one of no class.
        name: What it is called.
        share: What is left of its launches, or how much longer they take, whichever host it is.
    """

    factor: float = 1.0
    spread: float | None = None
    name: str = "median"
    share: float = 1.0

    def scaled(self, factor: float) -> Host:
        """Return the host that takes `factor` times as long."""
        return replace(self, share=self.share * factor)

    @property
    def words(self) -> str | None:
        """What was asked of it, such as `a slow host`; None where nothing was."""
        if self.spread is not None:
            return f"a {self.name} host"
        return None if self.factor == 1 else f"a host that takes {self.factor:g} times as long"

    @property
    def of_unmeasured_step(self) -> HostModel:
        """The model of a host of which nothing was timed."""
        spread = HOST_SPREAD if self.spread is None else self.spread
        return HostModel(factor=self.factor * self.share, low_factor=1 / spread, high_factor=spread)

    @property
    def over_measured(self) -> float:
        """Factor on a host that was timed: a class says no more of that one."""
        return self.share * (self.factor if self.spread is None else 1.0)


UNKNOWN_HOST: Final = Host()

HOSTS: Final[Mapping[str, Host]] = {
    "fast": Host(0.55, 1.3, "fast"),
    "median": Host(1.1, 1.35, "median"),
    "slow": Host(1.8, 1.5, "slow"),
}
"""Classes of hosts by how fast they launch.

Of the machines named at `HOST_SPREAD` two launch twice as fast as the others and are `fast`; the other six lie between
1.02 and 1.20 and are `median`. Rows of one machine scatter by 0.11 to 0.19, which makes the widths: exp(1.645 * 0.15)
and a little more, as machines of a class differ. Nobody published steps of a slower one that hold nothing but launches:
`slow`, for processors of low clocks or shared ones, is an assumption. Left out, each machine but the Lambda Labs' (of
one row) lies within the width of the class that the others make."""


def host_of(host: str | float | Host | None) -> Host:
    """Return the host of a class or a factor; of None, one of which nothing is known.

    Raises:
        InvalidArgumentError: Neither a class nor a number above 0.
    """
    if host is None or isinstance(host, Host):
        return host or UNKNOWN_HOST
    if isinstance(host, str) and host in HOSTS:
        return HOSTS[host]
    try:
        factor = math.nan if isinstance(host, bool) else float(host)
    except (TypeError, ValueError):
        factor = math.nan
    if not 0 < factor < math.inf:
        raise InvalidArgumentError(
            f"host={shown(host)} is neither a class of hosts ({', '.join(HOSTS)}) nor a ratio of times; give a number "
            "above 0, for example 0.5 for a host that is twice as fast."
        )
    return Host(factor)


@final
@dataclass(frozen=True, slots=True)
class HostModel:
    """A host: what each operation takes that has no recorded overheads of its own, and how fast it is.

    Attributes:
        by_phase: Overheads of operations that were not timed.
        factor: Time of this host over that of the one that the overheads, recorded or not, are from.
        low_factor: Lower end of the 90 % interval of its time, over the middle.
        high_factor: Upper end of it.
    """

    by_phase: Mapping[Phase, Overheads] = field(default_factory=lambda: SHARED_OVERHEADS)
    factor: float = 1.0
    low_factor: float = 1 / HOST_SPREAD
    high_factor: float = HOST_SPREAD

    def of(self, phase: Phase, recorded: Overheads | None = None, library_seconds: float = 0.0) -> Overheads:
        """Find the overheads of one operation: its recorded ones, else those of its phase and what its library adds."""
        if recorded is not None:
            return recorded.scaled(self.factor)
        own = self.by_phase[phase]
        first, without = own.before_first_launch + library_seconds, own.without_launch + library_seconds
        return replace(own, before_first_launch=first, without_launch=without).scaled(self.factor)
