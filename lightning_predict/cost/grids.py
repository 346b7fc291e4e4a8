"""Carbon intensity of an electricity grid, from a number or the name of a region, place or country.

Example::

    >>> grid_of("europe-west3").grams_per_kwh  # average of Frankfurt's grid in 2025
    275.81
    >>> grid_of("frankfurt") == grid_of("europe-west3")
    True
    >>> grid_of("FR") == grid_of("france")  # average of a country
    True
    >>> grid_of("380").grams_per_kwh
    380.0
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from lightning_predict.base.checked import Checked, nearest, read_toml
from lightning_predict.base.errors import CatalogueError, InvalidArgumentError

GRIDS_FILE: Final = Path(__file__).with_name("grids.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerGrid:
    """An electricity grid and its carbon intensity."""

    grams_per_kwh: float  # Grams of CO2-equivalent per kWh
    name: str | None = None  # Region and place, or country; None for a number from the user
    year: int | None = None  # Year of the average; None for a number from the user

    @property
    def sentence(self) -> str:
        """Carbon intensity and its origin: `275.81 g/kWh (europe-west3, Frankfurt, 2025)`."""
        known = "" if self.name is None else f" ({self.name}, {self.year})"
        return f"{self.grams_per_kwh:g} g/kWh{known}"


def grid_of(name: str | float) -> PowerGrid:
    """Return the grid of a region, place or country, or a grid with the given carbon intensity.

    Args:
        name: Grams of CO2-equivalent per kWh; a Google Cloud region (`us-central1`); the place of a region (`Iowa`); or
            a country by name or ISO code (`France`, `FR`, `FRA`). If a name is a place and a country (`Belgium`), the
            place is used.
    """
    try:
        grams = math.nan if isinstance(name, bool) else float(name)
    except (TypeError, ValueError, OverflowError):
        grids = _grids()
        grid = grids.get(_plain(str(name)))
        if grid is None:
            raise InvalidArgumentError(
                f"grid={name!r} is not a known region, place or country, or grams of CO2 per kWh. "
                f"{nearest(_plain(str(name)), grids)} Find other values at your provider or electricitymaps.com."
            ) from None
        return grid
    if not (math.isfinite(grams) and grams >= 0):
        raise InvalidArgumentError(f"grid={name} is out of range; expected grams of CO2 per kWh, 0 or more.")
    return PowerGrid(grams_per_kwh=grams)


def _plain(name: str) -> str:
    """Normalize a name: lower case, without accents and separators."""
    letters = unicodedata.normalize("NFKD", name).casefold()
    return "".join(letter for letter in letters if letter.isalnum())


@cache
def _grids() -> Mapping[str, PowerGrid]:
    document = read_toml(GRIDS_FILE, CatalogueError)
    year = document.member("source").member("year").integer()
    grids = {_plain(other): grid for names, grid in _countries(document) for other in names}
    for region, row in document.member("grams_per_kwh").members().items():
        place = row.member("place").words()
        grid = PowerGrid(grams_per_kwh=float(row.member("grams").positive()), name=f"{region}, {place}", year=year)
        grids |= {_plain(str(region)): grid, _plain(place): grid}
    return grids


def _countries(document: Checked) -> Iterator[tuple[tuple[str, ...], PowerGrid]]:
    """Yield all names of each country (name, ISO codes, other common names) with its grid."""
    for code, row in document.member("countries").members().items():
        name = row.member("name").words()
        grid = PowerGrid(
            grams_per_kwh=float(row.member("grams").positive()), name=name, year=row.member("year").integer()
        )
        yield (name, str(code), row.member("alpha3").words(), *row.optional("also", Checked.texts, ())), grid
