"""Hold what `predict` returns: one `Prediction` a GPU, in the order asked; prints as a table.

Example::

    result = lp.predict(trace, gpus=["T4", "L4"])
    result["T4"].iteration_seconds
    print(result)
    print(result.ranking(deadline_hours=8))
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar, final, overload

from lightning_predict.cost.prediction import AbstractPredictions, MachineInUse, Prediction
from lightning_predict.errors import LightningPredictError, MissingDependencyError, UnknownGpuError
from lightning_predict.gpus.layouts import layout_of
from lightning_predict.reports.ranking import Ranking, advice, rank
from lightning_predict.reports.table import html_table, plain_table

if TYPE_CHECKING:
    import pandas as pd

_Default = TypeVar("_Default")


@final
@dataclass(frozen=True)
class Predictions(AbstractPredictions):
    """Map names of GPUs to their predictions, in the order asked; any name that `predict` takes finds its own.

    Attributes:
        items_in_order: One prediction a GPU.
        used_gpu: Name of the GPU that the trace was recorded on, where it is one of the catalogue's.
        notes: What holds for all of them.
        machine: The machine in use, where none of the predictions is of it; None if it was not timed.
        heading: What is predicted, in words: how many steps of which size, and where one was recorded.
        is_running: The run goes on, so that the machine in use is this one.
        made_on: Day of the prediction (ISO 8601), against which prices are old; None: their age is not said.
    """

    items_in_order: tuple[Prediction, ...]
    used_gpu: str | None = None
    notes: tuple[str, ...] = ()
    machine: MachineInUse | None = None
    heading: str | None = None
    is_running: bool = False
    made_on: str | None = None

    def __getitem__(self, name: str) -> Prediction:
        found = self._find(name)
        if found is not None:
            return found
        asked = ", ".join(prediction.gpu for prediction in self.items_in_order)
        raise UnknownGpuError(f"No prediction for {name!r} here. Predicted: {asked}.")

    def __contains__(self, name: object) -> bool:
        # Mapping's own waits for a KeyError, which the error of __getitem__ is not; `get` below likewise.
        return self._find(name) is not None

    @overload
    def get(self, key: str, /) -> Prediction | None: ...

    @overload
    def get(self, key: str, default: Prediction, /) -> Prediction: ...

    @overload
    def get(self, key: str, default: _Default, /) -> Prediction | _Default: ...

    def get(self, key: str, default: object = None, /) -> object:
        """Give the prediction for this GPU, or `default`."""
        found = self._find(key)
        return default if found is None else found

    def _find(self, name: object) -> Prediction | None:
        """Find a GPU or layout by the name that it bears here, or by any other that `predict` takes."""
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
        return plain_table(self)

    def __repr__(self) -> str:
        """Show the table at a prompt, instead of all that it is made of."""
        return str(self)

    def text(self, *, verbose: bool = False) -> str:
        """Write the table as `print` shows it.

        Args:
            verbose: Add the methods that timed the device, the sources of prices, and every note.
        """
        return plain_table(self, verbose=verbose)

    def _repr_html_(self) -> str:
        """Show the table in a notebook, and what to rent."""
        lines = "".join(f"<p>{escape(line)}</p>" for line in advice(self.ranking()))
        return html_table(self) + lines

    def ranking(self, *, deadline_hours: float | None = None) -> Ranking:
        """Name the cheapest, the fastest, and the cheapest within a deadline; prints as lines.

        Args:
            deadline_hours: Time that the run may take; None leaves that out.

        Raises:
            InvalidArgumentError: A deadline that is not above 0.
        """
        return rank(self, deadline_hours=deadline_hours)

    def as_dict(self) -> dict[str, Any]:
        """Give everything as JSON values."""
        machine = self.machine
        return {
            "heading": self.heading,
            "made_on": self.made_on,
            "used_gpu": self.used_gpu,
            "machine_in_use": None
            if machine is None
            else {
                "name": machine.name,
                "step_seconds": machine.step_seconds,
                "total_seconds": None if machine.total is None else machine.total.middle,
                "total_seconds_low": None if machine.total is None else machine.total.low,
                "total_seconds_high": None if machine.total is None else machine.total.high,
                "at_most": machine.at_most,
                "is_cut_off": machine.is_cut_off,
                "usd_per_hour": machine.price.usd_per_hour,
                "cost_usd": machine.price.cost_usd,
            },
            "notes": list(self.notes),
            "predictions": [prediction.as_dict() for prediction in self.items_in_order],
        }

    def to_dict(self) -> dict[str, Any]:
        """Give everything as JSON values, as `as_dict` does, by the name that pandas has for it."""
        return self.as_dict()

    def to_json(self) -> str:
        """Give everything as JSON text."""
        return json.dumps(self.as_dict(), indent=2)

    def to_pandas(self) -> pd.DataFrame:
        """Give a data frame: a row a GPU, by name, and a column for each value of `Prediction.as_dict`.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingDependencyError(
                "to_pandas() needs pandas, which is not installed: pip install pandas; as_dict() does without it."
            ) from error
        return pd.DataFrame([prediction.as_dict() for prediction in self.items_in_order]).set_index("gpu")
