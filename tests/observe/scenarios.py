"""Runs on a virtual clock: their time is known to the second, so forecasts can be scored.

A `Scenario` has the time of each step, wait and validation batch; `told` tells a `RunObserver` of it, hook by hook, and
asks at some moments for the remainder. Example::

    for score in scores(SCENARIOS["3x, 2x, 2x"]):
        print(score.moment, score.error, score.holds)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_predict.base.interval import Interval

Of = Callable[[int], float]  # Seconds by the number of a batch


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A run."""

    step: Of  # Seconds of a batch by its number from 0
    wait: Of = lambda batch: 0.01  # Seconds before it
    epochs: int = 4  # Epochs
    batches: int = 50  # Batches of an epoch
    check: Sequence[float] = ()  # Seconds of the batches of the sanity check
    # Seconds of the batches of a validation run, by its number
    validation: Callable[[int], Sequence[float]] = lambda run: ()
    between: float = 0.0  # Seconds from the beginning of an epoch but the first to its first batch, beyond the wait
    closing: float = 0.0  # Seconds that an epoch ends with
    accumulation: int = 1  # Batches of a window
    workers: int = 0  # Workers that make the batches of training and of validation
    last_share: float = 1.0  # Samples of an epoch's last batch over those of others
    # Batch after which a prediction is made, and its seconds; None without a prediction
    predicts: tuple[int, float] | None = None

    @property
    def buffered(self) -> int:
        """Batches that the workers have ready after a break."""
        return PREFETCHED * self.workers

    @property
    def steps(self) -> int:
        """Batches of all epochs."""
        return self.epochs * self.batches


def decay(amplitude: float, over: float, step: float = 1.0) -> Of:
    """Steps that fall to `step` within the given number of steps."""
    return lambda batch: step * (1 + amplitude * math.exp(-3 * batch / over))


def every(period: int, factor: float, step: float = 1.0, phase: int = -1) -> Of:
    """Steps with one slow step per period, by the given factor."""
    return lambda batch: step * (factor if batch % period == phase % period else 1.0)


def listed(values: Sequence[float], step: float = 1.0) -> Of:
    """Steps that begin with these, in `step`."""
    return lambda batch: step * (values[batch] if batch < len(values) else 1.0)


def noisy(of: Of, spread: float, seed: int) -> Of:
    """The same with lognormal noise."""
    draws = random.Random(seed)
    factors = [math.exp(draws.gauss(0.0, spread)) for _ in range(4096)]
    return lambda batch: of(batch) * factors[batch % len(factors)]


def noisier(of: Of, seed: int, *, share: float = 0.03, factor: float = 4.0) -> Of:
    """The same with noise with some far slower values."""
    draws = random.Random(seed)
    factors = [math.exp(draws.gauss(0.0, 0.05)) * (factor if draws.random() < share else 1.0) for _ in range(4096)]
    return lambda batch: of(batch) * factors[batch % len(factors)]


def wandering(of: Of, seed: int, *, spread: float = 0.15, length: int = 20) -> Of:
    """The same on a machine whose load changes slowly."""
    draws = random.Random(seed)
    keep, level, levels = math.exp(-1 / length), draws.gauss(0.0, spread), []
    for _ in range(4096):
        levels.append(math.exp(level))
        level = keep * level + math.sqrt(1 - keep * keep) * draws.gauss(0.0, spread)
    return lambda batch: of(batch) * levels[batch % len(levels)]


PREFETCHED: Final = 2  # Batches that a worker of torch's loader makes ahead


def waits_for(
    make: Of,
    *,
    step: Of,
    workers: int,
    batches: int,
    runs: int,
    starts: float = 0.05,
    predicts: tuple[int, float] | None = None,
) -> list[float]:
    """Return the waits for batches of alternating workers, each one ahead, in runs of a number of batches.

    Args:
        make: Seconds that a worker takes for a batch.
        step: Seconds that a batch is used.
        workers: How many there are, which start anew with each run.
        batches: Batches of a run.
        runs: How many.
        starts: Seconds until a worker has started.
        predicts: Batch after which a prediction is made, while the workers go on, and its seconds.
    """
    after, seconds = predicts or (0, 0.0)
    waits = []
    for run in range(runs):
        now, free, ready = 0.0, [starts] * workers, list[float]()
        for number in range(batches):
            while len(ready) < min(batches, number + PREFETCHED * workers):
                worker = len(ready) % workers
                free[worker] = max(free[worker], now) + make(run * batches + len(ready))
                ready.append(free[worker])
            waits.append(max(0.0, ready[number] - now))
            now = max(now, ready[number]) + step(run * batches + number)
            now += seconds * (run * batches + number + 1 == after)
    return waits


def made_by_workers(make: Of, *, step: float, workers: int, batches: int = 100, validation: int = 25) -> Scenario:
    """A run that waits for its workers, in training and in validation, with all batches of the check ready."""
    epochs = 4
    waits, later = (
        waits_for(make, step=listed((), seconds), workers=workers, batches=count, runs=epochs)
        for seconds, count in ((step, batches), (step / 3, validation))
    )
    return Scenario(
        step=listed((), step),
        wait=lambda batch: waits[batch],
        epochs=epochs,
        batches=batches,
        check=(step / 3, step / 3),
        validation=lambda run: [step / 3 + wait for wait in later[run * validation : (run + 1) * validation]],
        workers=workers,
    )


CONSTANT: Final = listed(())

SCENARIOS: Final[dict[str, Scenario]] = {
    # Those that the estimator before this one failed at:
    "constant": Scenario(step=CONSTANT),
    "3x, 2x, 2x": Scenario(step=listed([3.0, 2.0, 2.0])),
    "decay over 15": Scenario(step=decay(1.0, 15)),
    "decay over 60": Scenario(step=decay(0.5, 60)),
    "5x every 10th": Scenario(step=every(10, 5.0)),
    "10x every 25th": Scenario(step=every(25, 10.0)),
    "stall every 40th": Scenario(step=every(40, 22.0)),
    "slow sanity check": Scenario(step=listed((), 0.1), check=(1.0, 1.0), validation=lambda run: [0.1] * 8),
    "no sanity check": Scenario(step=listed((), 0.1), validation=lambda run: [0.1] * 16),
    "cold loader": Scenario(step=CONSTANT, wait=lambda batch: 1.5 if batch < 50 else 0.5),
    "first batch 3 s": Scenario(step=listed((), 0.1), wait=lambda batch: 3.0 if batch % 50 == 0 else 0.0),
    "validation": Scenario(step=CONSTANT, check=(0.5, 0.4), validation=lambda run: [0.4] * 12),
    "accumulation": Scenario(step=every(4, 1.5), accumulation=4),
    # And ten more:
    "noise of 10 %": Scenario(step=noisy(CONSTANT, 0.1, 1)),
    "noise of 40 %": Scenario(step=noisy(CONSTANT, 0.4, 2)),
    "rare slow steps": Scenario(step=noisier(CONSTANT, 3)),
    "a load that changes": Scenario(step=wandering(CONSTANT, 4)),
    "two kinds in turn": Scenario(step=every(5, 2.5, phase=0)),
    "one accident": Scenario(step=lambda batch: 10.0 if batch == 9 else 1.0),
    "slow beginnings of epochs": Scenario(step=listed((), 0.2), between=4.0),
    "loader alone": Scenario(step=listed((), 0.05), wait=noisy(CONSTANT, 0.2, 5)),
    "decay with noise": Scenario(step=noisy(decay(1.0, 15), 0.05, 6)),
    "one epoch": Scenario(step=noisy(CONSTANT, 0.05, 7), epochs=1, batches=400),
    # And those at which its first version failed:
    "two workers too slow": made_by_workers(noisy(listed((), 0.03), 0.05, 9), step=0.003, workers=2),
    "eight workers too slow": made_by_workers(noisy(listed((), 0.2), 0.05, 10), step=0.01, workers=8),
    "workers that keep up": made_by_workers(noisy(listed((), 0.03), 0.05, 11), step=0.03, workers=2),
    "small last batches": Scenario(
        step=lambda batch: 0.5 * (0.3 if batch % 12 == 11 else 1.0),
        epochs=8,
        batches=12,
        check=(0.2, 0.15),
        validation=lambda run: [0.16, 0.16, 0.05],
        last_share=0.3,
    ),
    "short": Scenario(step=noisy(listed([2.5, 1.3]), 0.05, 8), epochs=2, batches=20),
}


def family(seed: int) -> Scenario:
    """A run drawn at random: what begins slowly, comes rarely, wanders and is loaded, in any combination."""
    draws = random.Random(seed)
    step = 10 ** draws.uniform(-1.5, 1.0)
    kind = draws.choice(["constant", "first", "decay", "decay"])
    of = listed((), step)
    if kind == "first":
        of = listed([draws.uniform(1.5, 30.0), *(draws.uniform(1.0, 3.0) for _ in range(draws.randrange(4)))], step)
    elif kind == "decay":
        of = decay(draws.uniform(0.2, 2.0), draws.uniform(3, 60), step)
    if draws.random() < 0.3:
        period, factor, plain = draws.randrange(4, 60), draws.uniform(1.5, 10.0), of
        phase = draws.randrange(period)
        of = lambda batch: plain(batch) * (factor if batch % period == phase else 1.0)  # noqa: E731
    how = draws.random()
    if how < 0.4:
        of = noisy(of, draws.uniform(0.0, 0.15), seed)
    elif how < 0.6:
        of = noisier(of, seed, share=draws.uniform(0.0, 0.05), factor=draws.uniform(2, 8))
    elif how < 0.8:
        of = wandering(of, seed, spread=draws.uniform(0.02, 0.2), length=draws.randrange(5, 60))
    waits, cold = step * 10 ** draws.uniform(-3, 0.3), draws.choice([1.0, 1.0, 1.0, draws.uniform(1, 3)])
    epochs, batches = draws.randrange(1, 8), draws.randrange(40, 200)
    first = draws.choice([0.0, 0.0, draws.uniform(0, 10) * step])
    long = noisy(listed((), waits), 0.3, seed + 1)
    share, count = draws.uniform(0.2, 0.5), draws.choice([0, 0, draws.randrange(2, 40)])
    check = () if not count else tuple(share * step * draws.choice([1.0, 1.3, 5.0]) for _ in range(2))
    return Scenario(
        step=of,
        wait=lambda batch: long(batch) * (cold if batch < batches else 1.0) + (first if batch % batches == 0 else 0.0),
        epochs=epochs,
        batches=batches,
        check=check,
        validation=lambda run: [share * step] * count,
    )


STALLS: Final = ("step", "wait", "validation", "epoch", "two", "three", "phase")
"""Where a stall falls: into a step, a wait, a validation batch or between epochs; or how many there are."""


def stalled(seed: int, *, kind: str | None = None) -> Scenario:
    """A run at random with one to three stalls of 3 to 3,000 steps (a suspended process, a hanging drive), most early.

    A phase is several slow steps in a row, as when another job uses the machine for a while.
    """
    draws = random.Random(seed)
    kind = kind or STALLS[seed // 2 % len(STALLS)]
    step, epochs, batches = 10 ** draws.uniform(-1.5, 1.5), draws.randrange(2, 5), draws.randrange(80, 400)
    number = {"two": 2, "three": 3, "phase": draws.randrange(4, 9)}.get(kind, 1)
    at = {min(epochs * batches - 1, int(10 ** draws.uniform(0.3, 2.2))) for _ in range(number)}
    length = step * 10 ** draws.uniform(0.5, 3.5)
    if kind == "phase":
        length, start = step * draws.uniform(3.0, 30.0), draws.randrange(2, 60)
        at = set(range(start, start + number))
    plain = noisy(listed((), step), draws.uniform(0.0, 0.15), seed)
    waits, count = step * draws.uniform(0.001, 0.2), draws.choice([0, draws.randrange(4, 40)])
    in_steps = at if kind in ("step", "two", "three", "phase") else set[int]()
    count = max(count, 4) if kind == "validation" else count
    stall = draws.randrange(count) if count else 0
    return Scenario(
        step=lambda batch: plain(batch) + length * (batch in in_steps),
        wait=lambda batch: (
            waits + length * (kind == "wait" and batch in at) + length * (kind == "epoch" and batch == batches)
        ),
        epochs=epochs,
        batches=batches,
        check=(0.3 * step, 0.3 * step) if count else (),
        validation=lambda run: [
            0.3 * step + length * (kind == "validation" and run == 0 and number == stall) for number in range(count)
        ],
    )


SPEEDS: Final = (
    "first batches", "first epoch", "loader", "epochs fall", "phase", "curve", "compiles", "validation", "windows",
    "steady", "slower", "periodic",
)  # fmt: skip


def speeds(seed: int) -> Scenario:
    """A run at random, most of which become faster: by up to 8 times, after up to 60 % of their batches."""
    draws = random.Random(seed)
    kind, epochs = SPEEDS[seed // 2 % len(SPEEDS)], draws.choice([1, 2, 3, 4, 5, 8, 10, 20])
    batches = draws.choice([300, 600, 1000]) if epochs == 1 else min(2000 // epochs, draws.choice([30, 60, 100, 200]))
    total, factor = epochs * batches, math.exp(draws.uniform(math.log(1.3), math.log(8.0)))
    until, share, period = draws.uniform(0.02, 0.6) * total, draws.uniform(0.1, 0.6), draws.randrange(2, 9)
    start = draws.choice([0.0, 0.0, draws.uniform(0, 0.5) * total]) if kind == "phase" else 0.0
    if kind == "first batches":
        until, factor = 10 ** draws.uniform(0.3, 2.0), math.exp(draws.uniform(math.log(2), math.log(30)))
    elif kind == "first epoch":
        until = batches
    elif kind == "periodic":
        period = draws.randrange(5, max(6, total // 4))
    jumps = draws.choice([False, True])
    levels = [1 + (factor - 1) * (1 - number / period) for number in range(period + 1)]
    shapes: dict[str, Of] = {
        "epochs fall": lambda batch: levels[(batch // batches) * (period + 1) // epochs],
        "phase": lambda batch: factor if start <= batch < start + until else 1.0,
        "curve": decay(factor - 1, until),
        "compiles": lambda batch: 2 * factor if batch % period == 0 and batch < until else 1.0,
        "slower": lambda batch: 1 + share * factor * (batch > until if jumps else batch / total),
        "periodic": lambda batch: factor if batch % period < share * period else 1.0,
    } | dict.fromkeys(("steady", "loader", "validation"), listed((), 0.5))
    of = shapes.get(kind, shapes["phase"])
    accumulation = draws.choice([4, 8, 16]) if kind == "windows" else 1
    last = every(accumulation, 2.0 if accumulation > 1 else 1.0)
    how, count = draws.randrange(3), draws.choice([0, draws.randrange(2, 40)]) if epochs > 1 else 0
    noise = (noisy(last, 0.1, seed), noisier(last, seed), wandering(last, seed, spread=0.1))[how]
    cold = 3 * factor if kind == "validation" else 1.0
    return Scenario(
        step=lambda batch: of(batch) * noise(batch),
        wait=lambda batch: factor if kind == "loader" and batch < until else 0.02,
        epochs=epochs,
        batches=batches,
        check=(0.4 * cold, 0.4 * cold) if count else (),
        validation=lambda run: [0.4 * (cold if run == 0 else 1.0)] * count,
        accumulation=accumulation,
    )


def rising(seed: int, *, kind: str = "line") -> Scenario:
    """A run at random whose steps get slower: in a line (sequences that grow), at once, or up to a limit (heat)."""
    draws = random.Random(seed)
    step, grows, batches = 10 ** draws.uniform(-1.5, 1.0), draws.uniform(0.5, 4.0), draws.randrange(150, 600)
    at = draws.uniform(0.05, 0.4) * batches
    of = {
        "line": lambda batch: step * (1 + grows * batch / batches),
        "at once": lambda batch: step * (1 + grows * (batch >= at)),
        "up to a limit": lambda batch: step * (1 + grows * (1 - math.exp(-batch / at))),
    }[kind]
    return Scenario(
        step=noisy(of, draws.uniform(0.0, 0.2), seed), wait=lambda batch: 0.01 * step, epochs=1, batches=batches
    )


def family_of_workers(seed: int) -> Scenario:
    """A run at random whose workers keep up or do not, and go on while its first steps are predicted from."""
    draws = random.Random(seed)
    workers, step = draws.choice([1, 2, 2, 4, 8]), 10 ** draws.uniform(-2.5, -0.5)
    make = noisy(listed((), step * workers * 10 ** draws.uniform(-0.7, 1.3)), draws.uniform(0.0, 0.3), seed)
    of = decay(draws.uniform(0.0, 2.0), draws.uniform(3, 30), step)
    if draws.random() < 0.3:
        of = listed([draws.uniform(1.5, 20.0), *(draws.uniform(1.0, 3.0) for _ in range(draws.randrange(4)))], step)
    of, predicts = noisy(of, draws.uniform(0.0, 0.15), seed + 1), (draws.randrange(4, 10), draws.uniform(0.2, 1.0))
    epochs, batches = draws.randrange(1, 5), draws.randrange(60, 200)
    starts = draws.uniform(0.03, 0.15)
    waits = waits_for(make, step=of, workers=workers, batches=batches, runs=epochs, starts=starts, predicts=predicts)
    return Scenario(
        step=of, wait=lambda batch: waits[batch], epochs=epochs, batches=batches, workers=workers, predicts=predicts
    )


@dataclass(frozen=True, kw_only=True)
class Score:
    """Forecast at a moment, against the actual time."""

    moment: str  # When
    believed: Interval[float] | None  # Seconds believed to be left; None if nothing was
    actual: float  # Seconds that were
    spent: float  # Seconds that had passed

    @property
    def error(self) -> float:
        """Relative error; all of it where nothing was believed."""
        return 1.0 if self.believed is None else self.believed.middle / self.actual - 1

    @property
    def holds(self) -> bool:
        """The interval covers the actual time."""
        return self.believed is not None and self.believed.contains(self.actual)

    @property
    def width(self) -> float:
        """High end over low end."""
        return math.inf if self.believed is None or not self.believed.low else self.believed.high / self.believed.low


def moments(scenario: Scenario) -> dict[int, str]:
    """Batches after which is asked."""
    windows = {4: "capture", 16: "16 steps"}
    named = {steps * scenario.accumulation: name for steps, name in windows.items()}
    named |= {scenario.steps // 4: "25 %", scenario.steps // 2: "50 %", scenario.steps * 9 // 10: "90 %"}
    return {batch: name for batch, name in named.items() if batch < scenario.steps}


Ask = Callable[[int], Interval[float] | None]


def told(scenario: Scenario, clock: object, advance: Callable[[float], None], after: Callable[[int], None]) -> None:
    """Tell a clock of a whole run."""
    tell: Any = clock
    if scenario.check:
        tell.on_sanity_check_start()
        validate(tell, scenario.check, advance, is_check=True)
    for epoch in range(scenario.epochs):
        tell.on_epoch_start()
        advance(scenario.between if epoch else 0.0)
        for number in range(scenario.batches):
            batch = epoch * scenario.batches + number
            advance(scenario.wait(batch))
            tell.on_batch_start()
            advance(scenario.step(batch))
            tell.on_batch_end()
            after(batch + 1)
            if scenario.predicts is not None and scenario.predicts[0] == batch + 1:
                advance(scenario.predicts[1])
                tell.exclude_interruption()
        if scenario.validation(epoch):
            validate(tell, scenario.validation(epoch), advance, is_check=False)
        tell.on_epoch_end()
        advance(scenario.closing)


def validate(tell: Any, batches: Sequence[float], advance: Callable[[float], None], *, is_check: bool) -> None:
    """Tell a clock of a validation run."""
    tell.on_validation_start(is_check=is_check)
    for seconds in batches:
        tell.validation.on_batch_start()
        advance(seconds)
        tell.validation.on_batch_end()
    tell.on_validation_end()
