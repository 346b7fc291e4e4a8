"""A host whose five overheads are whole microseconds, each another, and the device's own start."""

from lightning_predict.record.trace import PHASES
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
