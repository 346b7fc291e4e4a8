"""A host whose five overheads are whole microseconds, each another, the device's own start, and work by ratios."""

from collections.abc import Sequence
from unittest.mock import patch

from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels import measured_scaling
from lightning_predict.kernels.measured_scaling import KERNEL_RELATIONS, WorkTimes, predict_work_times
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.record.trace import PHASES, Trace
from lightning_predict.timeline.host import HostModel, Overheads
from lightning_predict.timeline.simulation import START_SECONDS

T1, T2, T3, T4, T5, ALONE = 1.0, 3.0, 2.0, 4.0, 5.0, 7.0
START = START_SECONDS * 1e6  # 2: from the end of a launch call to its kernel on an idle stream
OVERHEADS = Overheads(
    between_operations=T1 * 1e-6,
    before_first_launch=T2 * 1e-6,
    after_last_launch=T3 * 1e-6,
    launch=T4 * 1e-6,
    between_launches=T5 * 1e-6,
    without_launch=ALONE * 1e-6,
)
HOST = HostModel(by_phase=dict.fromkeys(PHASES, OVERHEADS))


def work_by_ratio(trace: Trace, gpus: Sequence[Gpu], *, origin: Gpu | None, models: KernelModels) -> WorkTimes:
    """Time work with measured kernels by the whole ratio of predictions on two GPUs, whatever their kernels are."""
    with (
        patch.object(measured_scaling, "RATIO_EXPONENTS", dict.fromkeys(KERNEL_RELATIONS, 1.0)),
        patch.object(measured_scaling, "transferable_residuals", lambda residuals, _groups: residuals),
    ):
        return predict_work_times(trace, gpus, origin=origin, models=models)
