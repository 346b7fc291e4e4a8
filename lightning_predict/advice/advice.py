"""`lp.advise`: recommends changes to a training run (mixed precision, torch.compile ...), and the GPU to rent.

Both the recorded and the changed step are predicted in the same way (`what_if.py`). A change can be recommended if
measured pairs validate the predicted gains of its kind (`gain_accuracy.py`). Such changes are combined greedily into a
chain, best change first. Then each GPU is priced without changes and with the chain. Example::

    advice = lp.advise(lp.Trace.load("step.json.gz"), ["L4", "A100-SXM-80GB"], iterations=50_000)
    advice["bf16-mixed"].gain.middle      # throughput with the change over throughput without, with .low and .high
    print(advice)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lightning_predict.advice.advice_text import Advice, Chain, ChangeVerdict, EvaluatedChange
from lightning_predict.advice.changes import CHANGES, SIDE_EFFECTS, Change
from lightning_predict.advice.gain_accuracy import calibration_for
from lightning_predict.advice.what_if import gain, predicted_with
from lightning_predict.assumptions import Assumptions, fill_in_assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.base.ties import NOTICEABLE, ordered
from lightning_predict.cost.prediction import Prediction, UserPrice
from lightning_predict.cost.priced_gpus import ALL, layouts_to_predict
from lightning_predict.fusion.options import KERNELS
from lightning_predict.hardware import Gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.strategy import LightningStrategy, Strategy, parse_strategy
from lightning_predict.prediction import shown_layouts
from lightning_predict.record.data_flow import with_data_flow
from lightning_predict.record.recorded_on import check_predictable, gpu_in_use
from lightning_predict.record.trace import Trace
from lightning_predict.reports.predictions import Predictions
from lightning_predict.step_predictor import layout_in_use
from lightning_predict.weights.source import AnyWeights

_REFUTED: Final = "try it: on measured pairs, a constant gain was nearer than the simulated one"
_UNPROVEN: Final = "try it: too few measured pairs to promise a number"
_LARGER: Final = "the step does not fit as it is, and this needs more memory"


@fill_in_assumptions
def advise(  # noqa: D417
    trace: Trace,
    gpus: str | Sequence[str | Gpu | Layout] = ALL,
    *,
    iterations: int | None = None,
    allow: Sequence[str] = ("numerics", "memory"),
    followed: Trace | None = None,
    strategy: str | Strategy | LightningStrategy = "ddp",
    kernels: str | Sequence[str] = (),
    usd_per_hour: UserPrice = None,
    weights: AnyWeights = None,
) -> Advice:
    """Return changes to the training with their gains, and the GPU to rent with these changes.

    Args:
        trace: A recorded step, from `capture` or `Trace.load`.
        gpus: Names of GPUs or layouts, or a group, as for `predict`. For a group, the GPUs that the table shows are
            used. Gains are for the GPU in use, otherwise for the first GPU.
        iterations: Number of remaining steps, for the savings of the run; None omits the savings.
        allow: Allowed side effects: `numerics` (results are rounded differently), `digits` (parameters permanently lose
            digits), `memory` (more memory), `samples` (a step trains on more samples). Changes with other side effects
            are listed, but are not part of the chain.
        followed: The same step captured on the meta device or the CPU, if `trace` is a profile of a GPU. Profiles lack
            the data flow between operations, which the prediction of torch.compile needs.
        The other arguments are fields of `Assumptions`.

    Raises:
        InvalidArgumentError: A word in `allow` is unknown, the `followed` step differs, or `predict` raises this error.
        LightningPredictError: `predict` failed.
    """
    assumptions = Assumptions(
        strategy=parse_strategy(strategy),
        kernels=kernels,
        usd_per_hour=usd_per_hour,
        weights=weights,
    )
    layouts = layouts_to_predict(gpus, usd_per_hour=usd_per_hour)
    return advice_for(trace, layouts, assumptions, iterations=iterations, allow=allow, followed=followed)


def advice_for(
    trace: Trace,
    layouts: Sequence[Layout],
    assumptions: Assumptions,
    *,
    iterations: int | None = None,
    allow: Sequence[str] = ("numerics", "memory"),
    followed: Trace | None = None,
) -> Advice:
    """Return the same as `advise`, for parsed layouts and assumptions."""
    unknown = sorted(set(allow) - set(SIDE_EFFECTS))
    if unknown:
        raise InvalidArgumentError(f"allow={unknown[0]!r} is not known; choose among {', '.join(SIDE_EFFECTS)}.")
    check_predictable(trace)
    assumptions = assumptions.of_step(trace)
    if followed is not None:
        trace = with_data_flow(trace, followed)
    layouts = shown_layouts(trace, layouts, iterations, assumptions)
    evaluated = _evaluated_layouts(trace, layouts)
    layout_of_gains = evaluated[0]
    assumptions = replace(assumptions, history=())  # both sides of a gain must be predicted in the same way
    evaluation = _Evaluation(trace, evaluated, iterations, assumptions)
    advised = [evaluation.advised(change) for change in CHANGES.values()]
    chain = evaluation.chain([change for change in advised if change.verdict == "faster"], frozenset(allow))
    return Advice(
        on=layout_of_gains.name,
        before=evaluation.before,
        changes=tuple(_ranked(advised)),
        allowed=frozenset(allow),
        chain=chain,
        notes=evaluation.before.notes,
    )


def _evaluated_layouts(trace: Trace, layouts: Sequence[Layout]) -> list[Layout]:
    """Return the layouts without duplicates, after the layout in use. The gains are for the first one."""
    origin = gpu_in_use(trace)
    in_use = () if origin is None else (layout_in_use(trace, origin),)
    return list(dict.fromkeys((*in_use, *layouts)))


def _ranked(advised: Sequence[EvaluatedChange]) -> list[EvaluatedChange]:
    """Sort by verdict, then by gain. Equal gains keep their order."""
    verdicts: tuple[ChangeVerdict, ...] = ("faster", "untested", "noise", "slower", "no")
    by_gain = ordered(advised, _gain_told, reverse=True)
    return sorted(by_gain, key=lambda advised: verdicts.index(advised.verdict))


def _gain_told(advised: EvaluatedChange) -> float:
    return (advised.simulated_gain if advised.gain is None else advised.gain.middle) or 0.0


class _Evaluation:
    """Evaluates changes of one recorded step."""

    def __init__(
        self,
        trace: Trace,
        layouts: list[Layout],
        iterations: int | None,
        assumptions: Assumptions,
    ) -> None:
        self._trace = trace
        self._layouts = layouts
        self._iterations = iterations
        self._assumptions = assumptions
        _, self.before = predicted_with((), trace, layouts, iterations, assumptions)
        self.changed: dict[tuple[str, ...], Trace] = {}
        self._predictions: dict[tuple[str, ...], Predictions] = {(): self.before}

    def predicted(self, names: tuple[str, ...]) -> Predictions:
        """Predict the step with these changes, named in the order of the table."""
        if names not in self._predictions:
            changes = tuple(CHANGES[name] for name in names)
            self.changed[names], self._predictions[names] = predicted_with(
                changes, self._trace, self._layouts, self._iterations, self._assumptions
            )
        return self._predictions[names]

    def _first(self, predictions: Predictions) -> Prediction:
        return predictions.items_in_order[0]

    def advised(self, change: Change) -> EvaluatedChange:
        described = EvaluatedChange(name=change.name, words=change.words, note=change.note, verdict="no", gains={})
        why_not = self._inapplicable_reason(change, self._trace, self._layouts[0])
        if why_not is not None:
            return replace(described, why_not=why_not)
        after = self.predicted((change.name,))
        before, own = self._first(self.before), self._first(after)
        described = replace(described, memory=own.memory_bytes, fits=own.fits)
        if before.fits is False and (own.memory_bytes or 0.0) > (1 + NOTICEABLE) * (before.memory_bytes or math.inf):
            return replace(described, why_not=_LARGER)
        evidence, simulated = calibration_for(change, self._trace), gain(before, own)
        if evidence is not None and evidence.is_refuted:
            return replace(described, verdict="untested", why_not=_REFUTED)
        # a layout has no gain if the change does not apply there
        gains = {
            place: gain(one, other)
            for place, (one, other) in enumerate(zip(self.before.items_in_order, after.items_in_order, strict=True))
            if self._inapplicable_reason(change, self._trace, one.layout) is None
        }
        described = replace(
            described,
            simulated_gain=simulated,
            simulated_gains={self._layouts[place].name: value for place, value in gains.items()},
        )
        if evidence is None:
            few = calibration_for(change, self._trace, allows_few=True)
            why_not = _UNPROVEN if few is None else f"{_UNPROVEN}. {few.words}"
            return replace(described, verdict="untested", seconds=own.cycle_seconds, why_not=why_not)
        interval = evidence.calibrated_gain(simulated)
        saved, usd = _saved(before, interval.middle)
        return replace(
            described,
            verdict=_verdict(interval),
            gain=interval,
            seconds=_seconds(before, own, interval.middle),
            seconds_saved=saved,
            usd_saved=usd,
            evidence=evidence.words,
            gains={self._layouts[place].name: evidence.calibrated_gain(value) for place, value in gains.items()},
        )

    def chain(self, candidates: Sequence[EvaluatedChange], allowed: frozenset[str]) -> Chain | None:
        """Return the best chain: add allowed, compatible changes, best first, while the gain increases."""
        names: tuple[str, ...] = ()
        order: tuple[str, ...] = ()
        for advised in _ranked(candidates):
            change = CHANGES[advised.name]
            if not change.side_effects <= allowed or not change.is_compatible(tuple(CHANGES[name] for name in names)):
                continue
            if names and self._inapplicable_reason(change, self.changed[names], self._layouts[0]) is not None:
                continue
            trial = tuple(name for name in CHANGES if name in (*names, advised.name))
            more = gain(self._first(self.predicted(names)), self._first(self.predicted(trial)))
            fits, fitted = (self._first(self.predicted(each)).fits for each in (trial, ()))
            if more >= 1 + NOTICEABLE and (fits is not False or fitted is False):
                names, order = trial, (*order, advised.name)
        if not names:
            return None
        predictions = self.predicted(names)
        gains = {
            layout.name: self._chain_gain(order, place)
            for place, layout in enumerate(self._layouts)
            if all(self._inapplicable_reason(CHANGES[name], self._trace, layout) is None for name in names)
        }
        own = gains[self._layouts[0].name]
        return Chain(
            names=names,
            gain=own,
            seconds=_seconds(self._first(self.before), self._first(predictions), own.middle),
            gains=gains,
            predictions=predictions,
        )

    def _inapplicable_reason(self, change: Change, trace: Trace, layout: Layout) -> str | None:
        runs = self._assumptions.without_kernels(self._assumptions.kernels_missing_on(layout.gpu))
        for name in runs.kernels_applied:
            if change.name in KERNELS and KERNELS[change.name].slot == KERNELS[name].slot:
                return f"the step runs {name} already"
        return change.why_not_on(trace, layout, self._assumptions.strategy)

    def _chain_gain(self, order: tuple[str, ...], place: int) -> Interval[float]:
        """Return the gain of a chain: the product of the gains that each change adds, with independent errors."""
        middle, widths, before = 1.0, [], self.before
        for count in range(1, len(order) + 1):
            after = self.predicted(tuple(name for name in CHANGES if name in order[:count]))
            evidence = calibration_for(CHANGES[order[count - 1]], self._trace)
            assert evidence is not None  # only changes with evidence are in the chain
            more = evidence.calibrated_gain(gain(before.items_in_order[place], after.items_in_order[place])).middle
            widths.append(evidence.half_width(more))
            middle, before = middle * more, after
        return Interval.from_factor(middle, math.exp(math.hypot(*widths)))


def _verdict(interval: Interval[float]) -> ChangeVerdict:
    middle = interval.middle
    is_faster = middle > 1
    doubt = 1 - interval.low if is_faster else interval.high - 1  # how far the interval extends beyond 1
    if 1 - NOTICEABLE <= middle < 1 + NOTICEABLE or abs(middle - 1) < doubt:
        return "noise"
    return "faster" if is_faster else "slower"


def _seconds(before: Prediction, after: Prediction, told: float) -> float:
    """Return the step time with a change, from the step time before the change and the gain."""
    one, other = (each.run.samples_per_iteration or 1 for each in (before, after))
    return before.cycle_seconds / one * other / told


def _saved(before: Prediction, told: float) -> tuple[float | None, float | None]:
    """Return the seconds and dollars that a run saves with a gain; None if unknown."""
    share = 1 - 1 / told
    seconds = None if before.remaining_seconds is None or not before.iterations else share * before.remaining_seconds
    return seconds, None if seconds is None or before.cost_usd is None else share * before.cost_usd
