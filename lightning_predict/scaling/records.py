"""`Workload`: what is still to be done; `Run`: how long that takes on one GPU.

Example::

    >>> Workload(training_iterations=1000, validation_iterations=50).training_iterations
    1000
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Steps still to come.

    Attributes:
        training_iterations: Training steps (accumulation windows) still to come; None where the length is unknown.
        training_iterations_per_epoch: Steps of one epoch; None where unknown.
        validation_iterations: Validation batches still to come; None where unknown.
        samples_per_iteration: Samples of one training step on one GPU; None where unknown.
        at_most: The run may end earlier (early stopping, a time limit).
    """

    training_iterations: int | None = None
    training_iterations_per_epoch: int | None = None
    validation_iterations: int | None = 0
    samples_per_iteration: int | None = None
    at_most: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The rest of a run on one GPU.

    Attributes:
        gpu: Name of the GPU.
        training_seconds: Of all training steps still to come; None where their number is unknown.
        validation_seconds: Of all validation batches still to come; None where their number or time is unknown.
        total_seconds: Both together, the known part of it; None where the number of training steps is unknown.
        total_low_seconds: Lower end of the 90 % interval.
        total_high_seconds: Upper end of the 90 % interval.
        validation_is_estimated: The time of a validation batch comes from the forward share of a training step.
        at_most: The run may end earlier.
    """

    gpu: str
    training_seconds: float | None
    validation_seconds: float | None
    total_seconds: float | None
    total_low_seconds: float | None
    total_high_seconds: float | None
    validation_is_estimated: bool = False
    at_most: bool = False
