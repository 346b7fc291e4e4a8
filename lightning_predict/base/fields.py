"""Values of a prediction: `Field` defines a value once for attributes, JSON, tables and loggers.

`cost/prediction.py` lists all fields. `reports/table_columns.py` formats the column of a field by its unit. Example::

    class PredictionFields:
        usd_per_hour = Field[float | None]("price.usd_per_hour", "Price of all machines.", "$/h", title="$/h")

A dataclass that inherits `Deferred` can postpone values that take long to compute. Example::

    size = defer(Size(3, 0), lambda: Size(3, slow_area(3)), "area")    # `size.area` calls `slow_area`, once
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, overload

from lightning_predict.base.units import bytes_to_gibibytes, seconds_to_hours, seconds_to_milliseconds

Value = TypeVar("Value")

LOGGED_UNITS: Final[dict[str, Callable[[float], float]]] = {
    "_ms": seconds_to_milliseconds,
    "_hours": seconds_to_hours,
    "_gib": bytes_to_gibibytes,
}
"""Unit conversion of a logged value, by a part of its logger key."""


class Field(Generic[Value]):
    """A value of a prediction, as a read-only attribute.

    Args:
        source: Path of attributes (`step.seconds`), or a function of the prediction. If an attribute of the path is
            None, the value is None.
        description: Description of the value, for `help`.
        unit: Unit of the value, which determines the format; empty for names, counts and flags.
        title: Title of the table column; None if the value has no column.
        shown: When the column is shown: always, with `verbose`, or if the user asks for it.
        is_left: Whether a column of numbers is aligned to the left.
        gives_way: Order in which columns are dropped if the line is too narrow, 1 first; None if the column is never
            dropped.
        breaks: Whether cells may be broken into several lines, after commas.
        in_json: Whether the value is part of JSON and pandas.
        on_machine: Whether the row of the machine in use shows the value.
        log: Logger key; None if the value is not logged. A part of the key selects a unit (`LOGGED_UNITS`).
    """

    name: str

    def __init__(
        self,
        source: str | Callable[[Any], Value],
        description: str,
        unit: str = "",
        *,
        title: str | None = None,
        shown: Literal["always", "verbose", "asked"] = "always",
        is_left: bool = False,
        gives_way: int | None = None,
        breaks: bool = False,
        in_json: bool = True,
        on_machine: bool = False,
        log: str | None = None,
    ) -> None:
        self.value: Callable[[Any], Value] = _along(source) if isinstance(source, str) else source
        self.unit = unit
        self.title = title
        self.shown = shown
        self.is_left = is_left or not unit
        self.gives_way = gives_way
        self.breaks = breaks
        self.in_json = in_json
        self.on_machine = on_machine
        self.log = log
        self.__doc__ = description

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Field[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object | None, owner: type) -> Field[Value] | Value:
        return self if instance is None else self.value(instance)

    def logged(self, instance: object) -> float | None:
        """Return the value in the unit of its logger key; None if unknown."""
        value: Any = self.value(instance)
        ending = next((ending for ending in LOGGED_UNITS if ending in (self.log or "")), None)
        return value if value is None or ending is None else LOGGED_UNITS[ending](value)


def fields_of(table: type) -> tuple[Field[Any], ...]:
    """Return the fields of a class, in the order of their definition."""
    return tuple(row for row in vars(table).values() if isinstance(row, Field))


def _along(path: str) -> Callable[[Any], Any]:
    names = path.split(".")

    def follow(instance: Any) -> Any:
        for name in names:
            if instance is None:
                return None
            instance = getattr(instance, name)
        return instance

    return follow


class Deferred:
    """Base of frozen dataclasses with slots whose fields `defer` can postpone."""

    __slots__ = ("_complete",)

    if not TYPE_CHECKING:  # a type checker would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Compute postponed fields. Python calls this method only for slots without a value."""
            if name not in self.__dataclass_fields__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            complete = object.__getattribute__(self, "_complete")
            if complete is not None:  # None: another thread has computed the fields in the meantime
                computed = complete()
                for field in self.__dataclass_fields__:
                    object.__setattr__(self, field, getattr(computed, field))
                object.__setattr__(self, "_complete", None)
            return object.__getattribute__(self, name)


_Instance = TypeVar("_Instance", bound=Deferred)


def defer(instance: _Instance, complete: Callable[[], _Instance], *fields: str) -> _Instance:
    """Postpone fields of an instance: `complete` returns an equal instance with all fields, on their first use."""
    for field in fields:
        object.__delattr__(instance, field)
    object.__setattr__(instance, "_complete", complete)
    return instance
