"""A step of GPUs that hold parts of a model: the pace of the slowest stage, and what its collectives add to it.

The collectives inside blocks, and what stages hand over, stand in the way of the work behind them: they are hidden by
nothing but the device's waits for the host. Example::

    pace = pace_of(stages[0], layout, strategy, CATALOGUE, row, factors)
    pace.seconds  # of one micro-batch, as (low, middle, high)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from lightning_predict.gpus.layouts import Layout
from lightning_predict.kernels.fabric import Interconnect
from lightning_predict.scaling.gradients import has_backward
from lightning_predict.scaling.pieces import Ends, Links
from lightning_predict.scaling.pipeline_parallel import hand_over_seconds
from lightning_predict.scaling.stages import Stage
from lightning_predict.scaling.strategy import Strategy
from lightning_predict.timeline.communication import Walked
from lightning_predict.timeline.launching import Launching
from lightning_predict.timeline.records import Iteration
from lightning_predict.timeline.simulation import Simulated
from lightning_predict.tracing.records import Phase


@final
@dataclass(frozen=True, slots=True)
class Pace:
    """A micro-batch in one stage; all times (low, middle, high).

    Attributes:
        stage: The stage.
        row: The layout's GPU.
        seconds: The micro-batch.
        communication_seconds: Its collectives inside the model.
        exposed: What of them makes it longer.
        update_seconds: The update behind the last micro-batch.
    """

    stage: Stage
    row: int
    seconds: Ends
    communication_seconds: Ends
    exposed: Ends
    update_seconds: Ends

    def repeated(self, walked: Walked, turns: float, *, exchanges: int) -> Walked:
        """A whole step: the last micro-batch and the update with what replicas exchange beside them, and those before.

        Args:
            walked: The last micro-batch and the update.
            turns: Micro-batches' worth of time of a step.
            exchanges: Micro-batches that are exchanged so; the others are not.
        """
        exchanged = walked.seconds - self.update_seconds
        before = (exchanges - 1) * exchanged + (turns - exchanges) * self.seconds
        return Walked(
            before + walked.seconds, exchanges * walked.communication_seconds, exchanges * walked.exposed_seconds
        )


def pace_of(
    stage: Stage, layout: Layout, strategy: Strategy, interconnect: Interconnect, row: int, factors: Ends
) -> Pace:
    """A micro-batch of a stage on a layout.

    Args:
        stage: The stage.
        layout: All GPUs.
        strategy: How they share.
        interconnect: What is known of the links.
        row: The layout's GPU.
        factors: By what the simulated times are multiplied; (low, middle, high).
    """
    communication = _communication(stage, layout, strategy, interconnect)
    passes, active = stage.passes.seconds[row] * factors, stage.passes.active_seconds[row] * factors
    # The device waits for the host or for the collectives, whichever is longer.
    exposed = np.maximum(communication - (passes - active), 0.0)
    update = (stage.whole.seconds[row] - stage.passes.seconds[row]) * factors
    return Pace(stage, row, passes + exposed, communication, exposed, np.maximum(update, 0.0))


def _communication(stage: Stage, layout: Layout, strategy: Strategy, interconnect: Interconnect) -> Ends:
    """Seconds of a micro-batch's collectives inside the model, each alone on its links; (low, middle, high)."""
    sharing = Links(Layout(layout.gpu, strategy.tensor), interconnect, slowdown=1.0)
    seconds = sum(sharing.collective("all_reduce", stage.reduced_bytes), np.zeros(3))
    if stage.hand_overs:
        seconds = seconds + stage.hand_overs * hand_over_seconds(stage.stream_bytes, layout, strategy, interconnect)
    return seconds


def divided_step(
    step: Iteration,
    work: Sequence[Launching],
    simulated: Simulated,
    pace: Pace,
    turns: float,
    layout: Layout,
    seconds: Ends,
    walked: Walked,
) -> Iteration:
    """The step of a layout whose GPUs hold parts of the model.

    Args:
        step: The step of one GPU.
        work: Its operations.
        simulated: The same, simulated.
        pace: The slowest stage.
        turns: Times that its micro-batch fits into the passes of a step.
        layout: The GPUs.
        seconds: The step on them; (low, middle, high).
        walked: What the replicas exchange in it.
    """
    stage, row = pace.stage, pace.row
    low, middle, high = seconds.tolist()
    again = stage.micro_batches - 1
    device = stage.whole.active_seconds[row] + again * stage.passes.active_seconds[row]
    host = stage.whole.host_seconds + again * stage.passes.host_seconds
    forward = _phase_share(stage.work, work, "forward", row) * turns
    waiting = turns * float(pace.exposed[1]) / (2 if has_backward(work) else 1)
    return replace(
        step,
        gpu=layout.name,
        seconds=middle,
        low_seconds=min(low, middle),
        high_seconds=max(high, middle),
        device_seconds=step.device_seconds * _ratio(float(device), float(simulated.active_seconds[row])),
        host_seconds=step.host_seconds * _ratio(host, simulated.host_seconds),
        forward_seconds=step.forward_seconds * forward + waiting,
        optimizer_seconds=step.optimizer_seconds * _phase_share(stage.work, work, "optimizer", row),
        verdict=None,  # that of one GPU's step; what bounds a part was not asked
        communication_seconds=float(
            walked.communication_seconds[1] + stage.micro_batches * pace.communication_seconds[1]
        ),
        added_seconds=middle - step.seconds,
        notes=(*step.notes, *stage.notes),
    )


def _phase_share(part: Sequence[Launching], whole: Sequence[Launching], phase: Phase, row: int) -> float:
    """Device time of a phase in a part over that in the whole."""
    one, all_of_it = (
        math.fsum(float(each.seconds[row].sum()) for each in work if each.phase == phase) for work in (part, whole)
    )
    return _ratio(one, all_of_it)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
