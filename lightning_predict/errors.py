"""Exception classes: all errors that this package raises on purpose.

The message of an error has the given value, the expected one, and a remedy. Catch the base class to catch all::

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
    """Base class of every error that this package raises on purpose."""

    def __str__(self) -> str:
        """Return the message, with control characters (such as escape sequences from a file) escaped."""
        text = super().__str__()
        return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


class UnknownGpuError(LightningPredictError, LookupError):
    """A GPU name that is not in the catalogue, with the nearest names that are."""


class UnknownOperationError(LightningPredictError, LookupError):
    """An operation, or a name of its shape parameters, that no kernel model supports."""


class UnknownOfferError(LightningPredictError, LookupError):
    """An offer or a price that was requested by name and is not listed."""


class InvalidArgumentError(LightningPredictError, ValueError):
    """An argument outside its allowed range or of the wrong kind."""


class CatalogueError(LightningPredictError):
    """A row of a shipped or user-given table (GPUs, offers) that violates the table's rules."""


class TraceError(LightningPredictError):
    """A trace that cannot be recorded, read or used."""


class TraceFormatError(TraceError):
    """A trace file that is not valid: truncated, not JSON, or with a missing or wrong field."""


class TraceVersionError(TraceError):
    """A trace file of a version that this release does not support."""


class CaptureError(TraceError):
    """A failed capture, for example because another profiler is running."""


class NothingRecordedError(CaptureError):
    """A capture of a step in which nothing ran."""


class WeightsError(LightningPredictError):
    """Weights that cannot be found, downloaded or trusted."""


class WeightsNotFoundError(WeightsError, LookupError):
    """No weights file for this GPU in any of the searched locations."""


class WeightsFormatError(WeightsError):
    """A weights file that is truncated, or whose tensors do not match its header."""


class WeightsHashError(WeightsError):
    """A weights file whose SHA-256 differs from the manifest's."""


class WeightsDownloadError(WeightsError):
    """A download that failed after its retries."""


class MeasurementTableError(LightningPredictError):
    """A table of measurements that is missing, or has a missing column or a wrong value."""


class BudgetExceededError(LightningPredictError):
    """The predicted or actual cost of a run exceeds its budget, and `on_exceed="raise"`."""


class PlanningError(LightningPredictError):
    """Jobs and machines that cannot be planned."""


class PlanningFormatError(PlanningError):
    """A file of jobs, or of a study, with a missing, wrong or unknown field; the message names its location."""


class InfeasiblePlanError(PlanningError):
    """Jobs that no plan can run, or tables that no GPUs can hold; the message names them and the constraint."""


class MissingDependencyError(LightningPredictError, ImportError):
    """A package of an optional extra that is not installed; the message has the install command."""
