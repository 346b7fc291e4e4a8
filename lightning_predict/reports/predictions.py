"""Result of `predict`: one `Prediction` per GPU, in the requested order; prints as a table.

Example::

    result = lp.predict(trace, gpus=["T4", "L4"])
    result["T4"].iteration_seconds
    print(result)
    print(result.ranking(deadline_hours=8))
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lightning_predict.base.errors import LightningPredictError, MissingDependencyError, UnknownGpuError
from lightning_predict.cost.prediction import AbstractPredictions, MachineInUse, Prediction
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.reports.ranking import Ranking, advice, rank, shortlist

if TYPE_CHECKING:
    import pandas as pd

_Default = TypeVar("_Default")


@dataclass(frozen=True)
class Predictions(AbstractPredictions):
    """Mapping from GPU names to predictions, in the requested order. Keys can be any name that `predict` accepts.

    Attributes:
        items_in_order: One prediction per GPU.
        used_gpu: Name of the GPU that recorded the trace, if it is in the catalogue.
        notes: Notes that apply to all predictions.
        machine: The machine in use. None if `items_in_order` has a prediction for this machine, or if no step was
            timed.
        heading: Title of the table: number and size of the steps, and where a step was recorded.
        is_running: Whether the predictions are for a run in progress on this machine.
        made_on: Day of the prediction (ISO 8601), used for the age of prices; None omits the age.
        group: Requested group of GPUs (`all`). Tables then show only the best GPUs. None if the user named GPUs.
        left_out: Number of GPUs of the group that are not in `items_in_order`.
    """

    items_in_order: tuple[Prediction, ...]
    used_gpu: str | None = None
    notes: tuple[str, ...] = ()
    machine: MachineInUse | None = None
    heading: str | None = None
    is_running: bool = False
    made_on: str | None = None
    group: str | None = None
    left_out: int = 0

    def __getitem__(self, name: str) -> Prediction:
        match = self._find(name)
        if match is not None:
            return match
        asked = ", ".join(prediction.gpu for prediction in self.items_in_order)
        raise UnknownGpuError(f"No prediction for {name!r} here. Predicted: {asked}.")

    def __contains__(self, name: object) -> bool:
        # Mapping.__contains__ and Mapping.get expect a KeyError from __getitem__, which raises UnknownGpuError here.
        return self._find(name) is not None

    @overload
    def get(self, key: str, /) -> Prediction | None: ...

    @overload
    def get(self, key: str, default: Prediction, /) -> Prediction: ...

    @overload
    def get(self, key: str, default: _Default, /) -> Prediction | _Default: ...

    def get(self, key: str, default: object = None, /) -> object:
        """Return the prediction for a GPU, or `default`."""
        match = self._find(key)
        return default if match is None else match

    def _find(self, name: object) -> Prediction | None:
        """Find a prediction by GPU or layout name, or by any other name that `predict` accepts."""
        by_name = {prediction.gpu: prediction for prediction in self.items_in_order}
        if not isinstance(name, str):
            return None
        try:
            return by_name[name] if name in by_name else by_name.get(layout_of(name).name)
        except LightningPredictError:
            return None

    def __iter__(self) -> Iterator[str]:
        return (prediction.gpu for prediction in self.items_in_order)

    def __len__(self) -> int:
        return len(self.items_in_order)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return str(self)

    def text(self, *, verbose: bool = False, columns: Collection[str] = ()) -> str:
        """Return the table as `print` shows it.

        Args:
            verbose: Add prediction methods, sources of prices, and all notes.
            columns: Columns to add, for example `mfu`, `samples_per_second`, `tokens_per_second`, `kilowatt_hours`.

        Raises:
            InvalidArgumentError: `columns` contains an unknown name.
        """
        from lightning_predict.reports.table import plain_table

        return plain_table(self, verbose=verbose, columns=columns)

    def _repr_html_(self) -> str:
        from lightning_predict.base.escaping import html_text as escape
        from lightning_predict.reports.table import html_table

        lines = "".join(f"<p>{escape(line)}</p>" for line in advice(self.ranking()))
        return html_table(self) + lines

    def shown(self) -> Predictions:
        """Return the predictions that a table shows: all named GPUs, or the best GPUs of a group.

        The best GPUs are the Pareto frontier of time and cost, and GPUs that may be the cheapest, cheapest first. The
        GPU in use comes first.
        """
        if self.group is None:
            return self
        names = dict.fromkeys(name for name in (self.used_gpu, *shortlist(self.ranking(), self)) if name in self)
        items = tuple(self[name] for name in names if name is not None)
        return replace(self, items_in_order=items, group=None, left_out=len(self) - len(items))

    def ranking(self, *, deadline_hours: float | None = None) -> Ranking:
        """Rank the GPUs: cheapest, fastest, and cheapest within a deadline. The ranking prints as sentences.

        Args:
            deadline_hours: Maximum time of the run; None for no deadline.

        Raises:
            InvalidArgumentError: The deadline is not above 0.
        """
        return rank(self, deadline_hours=deadline_hours)

    def as_dict(self) -> dict[str, Any]:
        """Return all predictions as JSON-serializable values."""
        machine = self.machine
        return {
            "heading": self.heading,
            "made_on": self.made_on,
            "used_gpu": self.used_gpu,
            "machine_in_use": None if machine is None else machine.as_dict(),
            "notes": list(self.notes),
            "predictions": [prediction.as_dict() for prediction in self.items_in_order],
        }

    def to_json(self) -> str:
        """Return all predictions as JSON text."""
        return json.dumps(self.as_dict(), indent=2)

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with one row per GPU and one column for each value of `Prediction.as_dict`.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingDependencyError(
                "to_pandas() needs pandas, which is not installed: pip install pandas. as_dict() works without it."
            ) from error
        return pd.DataFrame([prediction.as_dict() for prediction in self.items_in_order]).set_index("gpu")
