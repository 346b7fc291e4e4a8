"""Exception classes of this package.

An error message states the given value, the expected value, and a remedy. Catch the base class to catch every error::

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
    """Base class of every error that this package raises deliberately."""

    def __str__(self) -> str:
        """Return the message with escaped control characters, such as terminal escape sequences from a file."""
        text = super().__str__()
        return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


class UnknownGpuError(LightningPredictError, LookupError):
    """A GPU name is not in the catalogue. The message suggests the nearest names."""


class UnknownOperationError(LightningPredictError, LookupError):
    """No kernel model supports this operation or this shape parameter."""


class UnknownOfferError(LightningPredictError, LookupError):
    """The requested offer or price is not listed."""


class InvalidArgumentError(LightningPredictError, ValueError):
    """An argument is outside its allowed range or of the wrong type."""


class CatalogueError(LightningPredictError):
    """A row of a table of GPUs or offers, shipped or user-given, violates the table's rules."""


class TraceError(LightningPredictError):
    """A trace cannot be recorded, read or used."""


class TraceFormatError(TraceError):
    """A trace file is invalid: truncated, not JSON, or with a missing or wrong field."""


class TraceVersionError(TraceError):
    """A trace file has a version that this release does not support."""


class CaptureError(TraceError):
    """A step could not be captured, for example because another profiler is running."""


class NothingRecordedError(CaptureError):
    """The captured step ran no operation."""


class WeightsError(LightningPredictError):
    """Weights cannot be found, downloaded or trusted."""


class WeightsNotFoundError(WeightsError, LookupError):
    """None of the searched locations has a weights file for this GPU."""


class WeightsFormatError(WeightsError):
    """A weights file is truncated, or its tensors do not match its header."""


class WeightsHashError(WeightsError):
    """The SHA-256 checksum of a weights file differs from the manifest."""


class WeightsDownloadError(WeightsError):
    """A download failed after its retries."""


class MeasurementTableError(LightningPredictError):
    """A table of measurements is missing, lacks a column, or has a wrong value."""


class BudgetExceededError(LightningPredictError):
    """The predicted or actual cost of a run exceeds its budget, and `on_exceed="raise"`."""


class PlanningError(LightningPredictError):
    """The jobs and machines cannot be planned."""


class PlanningFormatError(PlanningError):
    """A file of jobs or of a study has a missing, wrong or unknown field. The message names its location."""


class InfeasiblePlanError(PlanningError):
    """No plan can run the jobs, or no GPUs can hold the tables. The message names the constraint."""


class MissingDependencyError(LightningPredictError, ImportError):
    """An optional package is not installed. The message has the install command."""
