"""The error tree: everything this package raises on purpose.

An error says what was given, what was expected and what to do. Catch the root to catch all of them::

    try:
        lp.gpu("H1000")
    except lp.LightningPredictError as error:
        print(error)

* `LightningPredictError`
    * `UnknownGpuError` (a `LookupError`)
    * `UnknownOperationError` (a `LookupError`)
    * `UnknownOfferError` (a `LookupError`)
    * `InvalidArgumentError` (a `ValueError`)
    * `CatalogueError`
    * `TraceError`
        * `TraceFormatError`
        * `TraceVersionError`
        * `CaptureError`
            * `NothingRecordedError`
    * `WeightsError`
        * `WeightsNotFoundError`
        * `WeightsFormatError`
        * `WeightsHashError`
        * `WeightsDownloadError`
    * `MeasurementTableError`
    * `BudgetExceededError`
    * `PlanningError`
        * `PlanningFormatError`
        * `InfeasiblePlanError`
    * `MissingDependencyError` (an `ImportError`)
"""

from __future__ import annotations


class LightningPredictError(Exception):
    """Root of every error that this package raises on purpose."""

    def __str__(self) -> str:
        """Return the message; control characters, such as escape sequences that a file holds, as their codes."""
        text = super().__str__()
        return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


class UnknownGpuError(LightningPredictError, LookupError):
    """A GPU name that the catalogue does not hold, with the nearest names that it does hold."""


class UnknownOperationError(LightningPredictError, LookupError):
    """An operation, or a word for its shape, that no kernel model knows."""


class UnknownOfferError(LightningPredictError, LookupError):
    """An offer or a price that was asked for by name and is not listed."""


class InvalidArgumentError(LightningPredictError, ValueError):
    """An argument outside its allowed range or of the wrong kind."""


class CatalogueError(LightningPredictError):
    """A row of a shipped or user-given table (GPUs, offers) that contradicts the table's rules."""


class TraceError(LightningPredictError):
    """A trace that cannot be recorded, read or used."""


class TraceFormatError(TraceError):
    """A trace file that is not valid: truncated, not JSON, or with a missing or wrong field."""


class TraceVersionError(TraceError):
    """A trace file of a version that this release does not read."""


class CaptureError(TraceError):
    """A capture that could not be made, for example because another profiler is running."""


class NothingRecordedError(CaptureError):
    """A capture of a step in which nothing ran."""


class WeightsError(LightningPredictError):
    """Weights that cannot be found, fetched or trusted."""


class WeightsNotFoundError(WeightsError, LookupError):
    """No weights file for this GPU at any place that was searched."""


class WeightsFormatError(WeightsError):
    """A weights file that is truncated, or whose tensors differ from what its header promises."""


class WeightsHashError(WeightsError):
    """A weights file whose SHA-256 differs from the manifest's."""


class WeightsDownloadError(WeightsError):
    """A download that failed after its retries."""


class MeasurementTableError(LightningPredictError):
    """A table of measurements that is missing, or has a missing column or a wrong value."""


class BudgetExceededError(LightningPredictError):
    """The predicted or actual spend of a run is over its budget, and `on_exceed="raise"`."""


class PlanningError(LightningPredictError):
    """Jobs and machines that cannot be planned."""


class PlanningFormatError(PlanningError):
    """A file of jobs, or of a study, that is not valid: a missing, wrong or unknown field, named with its place."""


class InfeasiblePlanError(PlanningError):
    """Jobs that no plan can run, or tables that no GPUs can hold; the message names them and the constraint."""


class MissingDependencyError(LightningPredictError, ImportError):
    """A package of one of the extras that is not installed, with the command that installs it."""
