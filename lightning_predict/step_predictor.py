"""`StepPredictor`: times a recorded step once on every GPU, then predicts the step on any layout with any strategy.

`predict` loops over layouts and `best_layouts` searches strategies; both use this class. Example::

    step = StepPredictor(trace, [gpu("H100-SXM-80GB")], Assumptions())
    step.predict_layout(layout_of("8xH100-SXM-80GB"), parse_strategy("fsdp")).iteration_seconds
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.interval import NOTHING, Interval
from lightning_predict.base.note import ASSUMED_VALUES, Note
from lightning_predict.cost.prediction import Prediction, on_offered_network, price_of
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.model_flops import step_work
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.translation import translation_notes
from lightning_predict.layouts.single_gpu import PredictionContext, SingleGpuSteps, single_steps, step_of_one_process
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.memory.libraries import context_bytes, nccl_bytes
from lightning_predict.memory.step_memory import DERIVED, MemoryNeed, StepMemory, memory_need, step_memory
from lightning_predict.record.recorded_on import (
    check_predictable,
    code_path_notes,
    gpu_in_use,
    has_measured_host,
    unknown_gpu_note,
)
from lightning_predict.record.torch_releases import for_torch_release, release_of
from lightning_predict.record.trace import Trace, measured_seconds, weighted_kinds
from lightning_predict.run.workload import (
    STEPS_SHOWN,
    Run,
    Workload,
    predict_run,
    workload_per_replica,
    workload_with_shared_cores,
)
from lightning_predict.timeline.host import without_profiled_host
from lightning_predict.timeline.step_prediction import StepPrediction
from lightning_predict.uncertainty import wait_elsewhere

if TYPE_CHECKING:
    from lightning_predict.embeddings.whole_step import ShardedEmbeddings
    from lightning_predict.layouts.layout_steps import MultiGpuStep
    from lightning_predict.memory.rank_memory import RankMemory
    from lightning_predict.run.history import Correction, HistoryRecord


class StepPredictor:
    """Predictor of a recorded step and the rest of its run, on any layout.

    Arguments as in `predict_workload`. `same_sizes` is a predictor of a step whose tensors have the same sizes, so that
    its memory is not simulated again.
    """

    def __init__(
        self,
        trace: Trace,
        gpus: Sequence[Gpu],
        assumptions: Assumptions,
        workload: Workload | None = None,
        *,
        validation: Trace | None = None,
        forecast: Interval[float] | None = None,
        same_sizes: StepPredictor | None = None,
    ) -> None:
        check_predictable(trace)
        assumptions = assumptions.of_step(trace)
        if assumptions.release is not None:
            of_release = partial(for_torch_release, release=assumptions.release)
            trace = trace.changed(of_release)
            validation = None if validation is None else validation.changed(of_release)
        if assumptions.zipf_alpha is not None:
            from lightning_predict.embeddings.tables import with_skew

            skewed = partial(with_skew, skew=assumptions.zipf_alpha)
            trace = trace.changed(skewed)
        if assumptions.kernels_applied:
            from lightning_predict.fusion.options import with_kernels

            trace = with_kernels(trace, assumptions.kernels_applied)
            if validation is not None:
                validation = with_kernels(validation, assumptions.kernels_applied, where_they_apply=True)
        if assumptions.host_assumed.spread is not None and not has_measured_host(trace):
            trace = trace.changed(without_profiled_host)
        self.trace = trace  # The recorded step, modified by the assumptions
        self._assumptions = assumptions
        workload = workload or Workload(training_iterations=None)
        if validation is not None and validation.step_seconds:
            # In user code, as in a step. The wait of the recorded batch, which may be cold, is at most a later batch.
            waited = min(validation.waited_seconds, *validation.step_seconds)
            wait = workload.validation_wait.added(_wait(validation, waited))
            workload = replace(workload, validation_wait=wait)
        self._workload = workload
        targets = tuple(dict.fromkeys(gpus))
        origin = gpu_in_use(trace)
        if origin is not None:  # has the user's own rates, if any
            origin = next((target for target in targets if target.name == origin.name), origin)
        # Layout that recorded the step; None without CUDA, or if the catalogue lacks the GPU
        self.in_use = None if origin is None else layout_in_use(trace, origin)
        needed = targets if origin is None else (*targets, origin)
        models = kernel_models(tuple(dict.fromkeys(target.name for target in needed)), assumptions.weights)
        # GPUs, kernel models and assumptions
        self.setting = PredictionContext(targets, origin, models, assumptions.host_assumed, assumptions.interconnect)
        self._model_notes = () if models is None else models.notes
        kinds, self._shares = weighted_kinds(trace)
        # Each kind of step, predicted on a single GPU of each model
        self.kinds = tuple(single_steps(kind, self.setting) for kind in kinds)
        self._validation = None if validation is None else single_steps(validation, self.setting)
        alone = [_mean_step(steps, self._shares) for steps in zip(*(kind.steps for kind in self.kinds), strict=True)]
        plain = trace.changed(step_of_one_process)
        self._learnt = _learnt(plain, alone, assumptions.history, origin)
        self._forecast = forecast
        self._run_factor = None
        if self.in_use is not None and trace.measured_steps and assumptions.history:
            from lightning_predict.run.history import fingerprint_of, run_correction

            self._run_factor = run_correction(assumptions.history, fingerprint_of(plain), self.in_use.name)
        self.ranks: dict[int, RankMemory] = {}
        self._memory: list[tuple[Trace, StepMemory]] = (
            [(kind, need) for kind in kinds if (need := step_memory(kind)) is not None]
            if same_sizes is None
            else same_sizes._memory
        )
        self._work = step_work([kind.timed for kind in self.kinds], self._shares, trace)
        self._ready: dict[int, MultiGpuStep] = {}
        self._tables: dict[Strategy, ShardedEmbeddings] = {}

    def with_offered_network(self, layout: Layout) -> Layout:
        """Return a layout with the network of the machines that price it. The layout in use is unchanged."""
        if layout == self.in_use:
            return layout
        own = self._assumptions
        return on_offered_network(layout, offers=own.offers, usd_per_hour=own.usd_per_hour)

    def predict_layout(self, layout: Layout, strategy: Strategy | None = None) -> Prediction:
        """Predict the step and the rest of the run on a layout.

        Args:
            layout: A layout of one of the GPUs given to the constructor.
            strategy: How the GPUs share the work; None uses the strategy of the assumptions.
        """
        strategy = self.strategy_on(layout, strategy)
        step = self.iteration(layout, strategy)
        reported = self.trace.gpu_memory_bytes if layout.gpu == self.setting.origin else None
        return self.prediction(layout, strategy, step, self.memory_need(layout, strategy, reported_bytes=reported))

    def strategy_on(self, layout: Layout, strategy: Strategy | None = None) -> Strategy:
        """Return a strategy, or that of the assumptions, with the degrees that it has on a layout."""
        strategy = self._assumptions.strategy if strategy is None else strategy
        batches, samples = self.trace.batches, self.trace.samples
        strategy = strategy.on(layout, batches=batches, samples=None if samples is None else samples // batches)
        strategy.replicas(layout)  # impossible degrees are an error before the model's blocks are looked for
        return strategy

    def prediction(self, layout: Layout, strategy: Strategy, step: StepPrediction, memory: MemoryNeed) -> Prediction:
        """Combine the step on a layout with the run and its price."""
        run = self._run(layout, strategy, step)
        price = price_of(
            run,
            layout,
            offers=self._assumptions.offers,
            usd_per_hour=self._assumptions.usd_per_hour,
            charges=None if layout == self.in_use else self._assumptions.charges,
        )
        return Prediction(layout, step, run, price, memory)

    def iteration(self, layout: Layout, strategy: Strategy) -> StepPrediction:
        """Predict the step on a layout, corrected by earlier runs. The layout in use gets its measured time."""
        row = self.setting.gpus.index(layout.gpu)
        correction = self._learnt[row]
        by_kind = []
        for kind in self.kinds:
            steps = list(kind.steps)
            if correction is not None:
                steps[row] = steps[row].scaled(correction.step, note=correction.note(steps[row].gpu))
            step = self._shared(kind, steps, layout, strategy)
            if layout == self.in_use and layout.count > 1:
                step = step.with_measured_steps(kind.recorded.measured_steps)
            by_kind.append(step)
        waits = (_wait(kind.recorded, kind.recorded.waited_seconds) for kind in self.kinds)
        shares = zip(waits, self._shares, strict=True)
        wait = reduce(Interval.added, (wait.scaled(share) for wait, share in shares), NOTHING)
        step = _mean_step(by_kind, self._shares).with_wait(wait)
        is_as_recorded = layout.count == 1 and not strategy.changes_operations
        if layout == self.in_use and (layout.count > 1 or is_as_recorded):
            from lightning_predict.timeline.same_gpu_check import mean_check

            check = mean_check([kind.check for kind in self.kinds], self._shares)
            unmeasured = None if check is None else check.predicted_seconds
            step = replace(step, measured_seconds=measured_seconds(self.trace), unmeasured_seconds=unmeasured)
        # With other operations, or on several GPUs, the step of each kind contains all batches already.
        return step.accumulated(strategy.accumulate) if is_as_recorded else step

    def memory_need(
        self, layout: Layout, strategy: Strategy, *, reported_bytes: float | None = None, finds_least: bool = True
    ) -> MemoryNeed:
        """Return whether the kind of step that needs the most memory fits on each GPU; empty if no need is known.

        `finds_least` also simulates the least filled GPU.
        """
        return memory_need_of(
            self._memory,
            layout,
            strategy,
            self._embeddings(strategy),
            reported_bytes=reported_bytes,
            ranks=self.ranks,
            finds_least=finds_least,
        )

    def shared(self, kind: SingleGpuSteps) -> MultiGpuStep:
        """Return the cached simulation of a kind of step, from which the step on several GPUs is predicted."""
        if id(kind) not in self._ready:
            from lightning_predict.layouts.layout_steps import MultiGpuStep

            setting = self.setting
            self._ready[id(kind)] = MultiGpuStep(
                kind.trace, kind.timed, setting.gpus, origin=setting.origin, models=setting.models, host=kind.host
            )
        return self._ready[id(kind)]

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the trace and the models, without duplicates."""
        unknown_gpu = unknown_gpu_note(self.trace)
        return (
            *([] if unknown_gpu is None else [unknown_gpu]),
            *_notes(self.kinds),
            *_kinds_note(self.trace),
            *self._model_notes,
            *(() if self._run_factor is None or self.in_use is None else (self._run_factor.note(self.in_use.name),)),
        )

    def _embeddings(self, strategy: Strategy) -> ShardedEmbeddings | None:
        if strategy.embedding is None:
            return None
        if strategy not in self._tables:
            from lightning_predict.embeddings.whole_step import ShardedEmbeddings

            self._tables[strategy] = ShardedEmbeddings(strategy, self.setting)
        return self._tables[strategy]

    def _shared(
        self, kind: SingleGpuSteps, steps: Sequence[StepPrediction], layout: Layout, strategy: Strategy
    ) -> StepPrediction:
        """Predict one kind of step on a layout, from its predictions on single GPUs."""
        tables, row = self._embeddings(strategy), self.setting.gpus.index(layout.gpu)
        if tables is not None:
            return tables.steps(kind, steps, [layout])[0]
        if layout.count == 1 and not strategy.changes_operations:
            return steps[row]
        return self.shared(kind).on_layout(layout, steps[row], row, strategy, self.setting.interconnect)

    def _checked(self, layout: Layout, strategy: Strategy) -> StepPrediction | None:
        """Predict one validation batch; None without validation. Replicas validate independently."""
        validation = self._validation
        if validation is None:
            return None
        if strategy.embedding is None and strategy.model_parallel == 1:
            return validation.steps[self.setting.gpus.index(layout.gpu)]
        own = strategy if strategy.embedding is not None else replace(strategy, micro_batches=None)
        return self._shared(validation, validation.steps, layout, own)  # has its own batch size

    def _run(self, layout: Layout, strategy: Strategy, step: StepPrediction) -> Run:
        """Predict the rest of the run. Replicas share the samples, and loaders share the CPU cores."""
        trace, workload = self.trace, self._workload
        replicas, batches = strategy.replicas(layout), trace.batches * strategy.accumulate
        own = workload_with_shared_cores(
            workload_per_replica(
                workload, replicas=replicas, recorded=trace.world_size, accumulate=strategy.accumulate
            ),
            gpus_per_node=layout.gpus_per_node,
            recorded=trace.world_size // trace.num_nodes,
            cores_per_node=self._assumptions.cores_per_node,
        )
        groups = replicas * strategy.accumulate  # number of recorded batches per optimizer step
        run = predict_run(step, own, self._checked(layout, strategy), batches=batches, replicas=groups)
        return self.corrected(self.with_work(run, groups), layout)

    def with_work(self, run: Run, groups: float) -> Run:
        """Return a run with the FLOPs, tokens and shown number of steps that consist of `groups` recorded batches."""
        work = self._work
        return replace(
            run,
            flops=None if work.flops is None else groups * work.flops,
            flops_dtype=work.dtype,
            tokens_per_iteration=None if work.tokens is None else round(groups * work.tokens),
            shown_iterations=math.ceil(STEPS_SHOWN * self.trace.world_size / groups),
        )

    def corrected(self, run: Run, layout: Layout | None) -> Run:
        """Correct a run by its own progress and by earlier runs, and limit its time to the Trainer's time limit."""
        if layout == self.in_use and self._forecast is not None:
            run = replace(run, total=self._forecast)
        factor = self._run_factor
        if factor is not None:
            run = run.scaled(factor.run, factor.run_spread)
        return run.cut_off(self._workload.time_limit_seconds)


def layout_in_use(trace: Trace, origin: Gpu) -> Layout:
    """Return the layout that the recording processes used."""
    return Layout(origin, max(trace.world_size // trace.num_nodes, 1), trace.num_nodes)


def _wait(step: Trace, seconds: float) -> Interval[float]:
    """Return the wait of a recorded step, elsewhere."""
    return wait_elsewhere(seconds, step.step_seconds, is_most=2 * seconds > (step.profiled_seconds or math.inf))


def _mean_step(steps: Sequence[StepPrediction], shares: Sequence[float]) -> StepPrediction:
    if len(steps) == 1:
        return steps[0]
    from lightning_predict.timeline.same_gpu_check import mean_step

    return mean_step(steps, shares)


def _kinds_note(trace: Trace) -> tuple[str, ...]:
    if not trace.other_steps:
        return ()
    from lightning_predict.timeline.same_gpu_check import kinds_note

    return kinds_note(trace)


def _learnt(
    trace: Trace, steps: Sequence[StepPrediction], history: Sequence[HistoryRecord], origin: Gpu | None
) -> list[Correction | None]:
    """Return the correction from earlier runs for each GPU; None without matching runs."""
    if not history:
        return [None] * len(steps)
    from lightning_predict.run.history import correction_for, fingerprint_of

    fingerprint = fingerprint_of(trace)
    return [
        correction_for(history, fingerprint, step)
        if origin is None or step.gpu != origin.name or not trace.measured_steps
        else None
        for step in steps
    ]


def memory_need_of(
    memory: Sequence[tuple[Trace, StepMemory]],
    layout: Layout,
    sharing: Strategy,
    tables: ShardedEmbeddings | None = None,
    *,
    reported_bytes: float | None = None,
    correction: float = 1.0,
    ranks: dict[int, RankMemory] | None = None,
    finds_least: bool = True,
) -> MemoryNeed:
    """Return whether the kind of step that needs the most memory fits on each GPU; empty if no need is known.

    `correction` is measured over derived memory, which `memory` already includes. `ranks` caches the simulated ranks of
    each kind of step, by id.
    """
    needs = []
    for kind, single in memory:
        simulated, least = single, None
        needed: float | None
        own = sharing if layout.count > 1 else sharing.on_one_gpu
        if layout.count == 1 and own == Strategy():
            needed, allocated = simulated.bytes_on(layout.gpu), float(simulated.allocated_on(layout.gpu))
        elif tables is not None and layout.count > 1:
            needed, least = tables.needed_bytes(kind, layout)
            allocated = (needed or 0.0) * simulated.allocated_on(layout.gpu) / max(simulated.bytes_on(layout.gpu), 1)
        else:
            known = {} if ranks is None else ranks
            simulated, needed, allocated, least = _on_layout(
                kind, simulated, layout, own, correction, known, finds_least=finds_least
            )
        if needed is not None:
            needs.append((needed, allocated, least, simulated, kind))
    if not needs:
        return MemoryNeed()
    needed, allocated, least, simulated, kind = max(needs, key=lambda each: each[0])
    slack, unused = simulated.bytes_on(layout.gpu) - simulated.allocated_on(layout.gpu), max(needed - allocated, 0.0)
    spreads = (DERIVED, DERIVED) if layout.count > 1 else (simulated.relative, simulated.relative_allocated)
    return memory_need(
        layout,
        needed,
        relative=spreads[0],
        allocated_bytes=allocated,
        relative_allocated=spreads[1],
        releasable_bytes=lambda: min(simulated.releasable_bytes / slack, 1.0) * unused if slack > 0 else 0.0,
        most_releasable_bytes=unused,
        context=_beside_the_allocator(kind, layout, sharing),
        reported_bytes=reported_bytes,
        least_filled_bytes=least,
    )


def _on_layout(
    kind: Trace,
    single: StepMemory,
    layout: Layout,
    sharing: Strategy,
    correction: float,
    known: dict[int, RankMemory],
    *,
    finds_least: bool,
) -> tuple[StepMemory, float, float, float | None]:
    """Return the memory of a rank, its reserved and allocated bytes, and the reserved bytes of the least filled rank.

    If memory was measured on one GPU, the simulation of a rank is scaled by measured over simulated memory on one GPU:
    its tensors and its free blocks each by their own.
    """
    from lightning_predict.memory.rank_memory import RankMemory

    ranks = known[id(kind)] = known.get(id(kind)) or RankMemory(kind)
    most = ranks.most_filled(layout, sharing)
    least = ranks.least_filled(layout, sharing) if finds_least else None
    reserved, allocated = correction * most.bytes_on(layout.gpu), float(most.allocated_on(layout.gpu))
    if kind.memory.peak_bytes is not None or kind.memory.reserved_bytes is not None:
        gpu, alone = layout.gpu, ranks.alone
        factor = single.allocated_on(gpu) / alone.allocated_on(gpu)
        unused = alone.bytes_on(gpu) - alone.allocated_on(gpu)
        is_known = kind.memory.reserved_bytes is not None and unused > 0
        share = (single.bytes_on(gpu) - single.allocated_on(gpu)) / unused if is_known else factor
        reserved = factor * allocated + share * (most.bytes_on(gpu) - allocated)
        allocated *= factor
    rest = None if least is None else reserved / most.bytes_on(layout.gpu) * least.bytes_on(layout.gpu)
    return most, reserved, allocated, rest


def _beside_the_allocator(kind: Trace, layout: Layout, sharing: Strategy) -> Interval[float]:
    """Estimate a process's GPU memory outside torch's allocator, in bytes."""
    peers = min(sharing.expert, layout.gpus_per_node) - 1
    buffers = nccl_bytes(layout.gpu, communicators=sharing.communicators(layout), all_to_all_peers=peers)
    return context_bytes(layout.gpu, release_of(kind.software)).added(buffers)


def _notes(singles: Sequence[SingleGpuSteps]) -> tuple[str, ...]:
    notes: dict[str, None] = {}
    for single in singles:
        kind, untranslated = single.recorded, translation_notes(single.trace, single.timed.items)
        recorded = (Note(note, is_detail=True) if note.startswith(ASSUMED_VALUES) else note for note in kind.notes)
        notes |= dict.fromkeys((*recorded, *code_path_notes(kind), *untranslated))
    return tuple(notes)
