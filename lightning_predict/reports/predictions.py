"""`Predictions`: one `Prediction` a GPU, in the order asked; prints as a table.

Example::

    result = lp.predict(trace, gpus=["T4", "L4"])
    result["T4"].iteration_seconds
    print(result)
    print(result.ranking(deadline_hours=8))
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, final, overload

from lightning_predict.cost.prediction import Prediction
from lightning_predict.errors import UnknownGpuError

if TYPE_CHECKING:
    from lightning_predict.reports.ranking import Ranking

_Default = TypeVar("_Default")


@final
@dataclass(frozen=True)
class Predictions(Mapping[str, Prediction]):
    """Predictions by GPU name.

    Attributes:
        items_in_order: One prediction a GPU.
        used_gpu: Name of the GPU that the trace was recorded on, where it is one of the catalogue's.
        notes: What holds for all of them.
    """

    items_in_order: tuple[Prediction, ...]
    used_gpu: str | None = None
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Prediction:
        for prediction in self.items_in_order:
            if prediction.gpu == name:
                return prediction
        asked = ", ".join(prediction.gpu for prediction in self.items_in_order)
        raise UnknownGpuError(f"No prediction for {name!r} here. Predicted: {asked}.")

    def __contains__(self, name: object) -> bool:
        # Mapping's own waits for a KeyError, which the error of __getitem__ is not; `get` below likewise.
        return any(prediction.gpu == name for prediction in self.items_in_order)

    @overload
    def get(self, key: str, /) -> Prediction | None: ...

    @overload
    def get(self, key: str, default: Prediction, /) -> Prediction: ...

    @overload
    def get(self, key: str, default: _Default, /) -> Prediction | _Default: ...

    def get(self, key: str, default: object = None, /) -> object:
        """The prediction for this GPU, or `default`."""
        return next((prediction for prediction in self.items_in_order if prediction.gpu == key), default)

    def __iter__(self) -> Iterator[str]:
        return (prediction.gpu for prediction in self.items_in_order)

    def __len__(self) -> int:
        return len(self.items_in_order)

    def __str__(self) -> str:
        from lightning_predict.reports.table import plain_table

        return plain_table(self)

    def ranking(self, *, deadline_hours: float | None = None) -> Ranking:
        """Cheapest, fastest, and the cheapest within a deadline; prints as lines.

        Args:
            deadline_hours: Time that the run may take; None leaves that out.

        Raises:
            InvalidArgumentError: A deadline that is not above 0.
        """
        from lightning_predict.reports.ranking import rank

        return rank(self, deadline_hours=deadline_hours)

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "used_gpu": self.used_gpu,
            "notes": list(self.notes),
            "predictions": [prediction.as_dict() for prediction in self.items_in_order],
        }

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.as_dict(), indent=2)
