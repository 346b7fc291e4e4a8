"""From a recorded step to its time on each GPU and layout: a training step and a validation batch go the same way.

Example::

    single = single_steps(trace, setting)
    shared_steps(single, single.steps, [layout_of("8xL4")], strategy_of("ddp"), setting)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from lightning_predict.gpus.layouts import Layout
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import TimedWork, timed_work
from lightning_predict.kernels.estimates import KernelModels
from lightning_predict.kernels.fabric import Interconnect
from lightning_predict.scaling.parallel import on_layouts
from lightning_predict.scaling.strategy import Strategy
from lightning_predict.timeline.records import Iteration
from lightning_predict.timeline.same_gpu import SameGpuCheck, corrected_iterations, corrected_work, same_gpu_check
from lightning_predict.tracing.collectives import without_collectives
from lightning_predict.tracing.records import Trace


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """What every step of one prediction is predicted with.

    Attributes:
        gpus: The GPUs, each once.
        origin: GPU that the steps were recorded on; None off CUDA and where the catalogue lacks it.
        models: Trained models; None uses rooflines instead.
        method: How kernels are predicted, see `kernels/choice.py`.
        host_factor: Time of the processor beside the GPUs over that of the one in use.
        interconnect: What is known of the links between GPUs.
    """

    gpus: tuple[Gpu, ...]
    origin: Gpu | None
    models: KernelModels | None
    method: str
    host_factor: float
    interconnect: Interconnect


@final
@dataclass(frozen=True, slots=True)
class SingleSteps:
    """A recorded step as that of one process, and what it takes on one of each GPU.

    Attributes:
        recorded: The step as it was recorded.
        trace: The step without what processes exchanged.
        timed: Its work with device seconds as the check corrects them, rows in the order of the setting's GPUs.
        host_factor: Time of the host beside them over that of the one that the overheads describe.
        steps: One Iteration a GPU.
        check: The GPU in use, predicted too; None where nothing was measured on it.
    """

    recorded: Trace
    trace: Trace
    timed: TimedWork
    host_factor: float
    steps: tuple[Iteration, ...]
    check: SameGpuCheck | None


def single_steps(trace: Trace, setting: Setting) -> SingleSteps:
    """The step on one of each GPU.

    Args:
        trace: As it was recorded.
        setting: What it is predicted with.
    """
    alone = without_collectives(trace)
    check = same_gpu_check(alone, setting.origin, setting.models)
    timed = timed_work(alone, setting.gpus, origin=setting.origin, models=setting.models, method=setting.method)
    steps = corrected_iterations(
        alone, timed, setting.gpus, origin=setting.origin, check=check, host_factor=setting.host_factor
    )
    work, factor = corrected_work(alone, timed, check)
    return SingleSteps(trace, alone, work, setting.host_factor * factor, steps, check)


def shared_steps(
    single: SingleSteps, steps: Sequence[Iteration], layouts: Sequence[Layout], strategy: Strategy, setting: Setting
) -> tuple[Iteration, ...]:
    """The step on layouts.

    Args:
        single: The step on one of each GPU.
        steps: The same, corrected by what else is known.
        layouts: Layouts of the setting's GPUs.
        strategy: How their GPUs share the work.
        setting: What the step is predicted with.

    Raises:
        InvalidArgumentError: As `on_layouts`.
    """
    return on_layouts(
        single.trace,
        single.timed,
        setting.gpus,
        steps,
        layouts,
        strategy,
        interconnect=setting.interconnect,
        origin=setting.origin,
        models=setting.models,
        host_factor=single.host_factor,
    )
