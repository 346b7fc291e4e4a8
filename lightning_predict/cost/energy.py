"""Estimate the energy of a run, and its CO2 emissions if the grid is known.

A computing GPU draws its power limit. A GPU that waits for the host draws a share of the limit::

    mean watts = power limit x (busy share + idle share x (1 - busy share))
    kWh        = mean kilowatts x hours x GPUs

The power limit is from the data sheet, so the result is an upper estimate. Machines with eight H100s drew 76 % of their
maximum rated power in training (Newkirk et al., "Empirically-Calibrated H100 Node Power Models", arXiv 2506.14551). The
other parts of the machine and the cooling count only if `overhead` includes them. Example::

    >>> from lightning_predict.hardware import gpu
    >>> t4 = energy(3600.0, gpu("T4"), busy_share=1.0, grid_grams_per_kwh=400)  # an hour at 70 W
    >>> t4.kilowatt_hours, round(t4.co2_kilograms, 3)
    (0.07, 0.028)
    >>> grid_of("europe-west3").grams_per_kwh  # average of Frankfurt's grid in 2025
    275.81
    >>> grid_of("frankfurt") == grid_of("europe-west3"), grid_of("FR") == grid_of("france"), grid_of("38").grams_per_kwh
    (True, True, 38.0)
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
from lightning_predict.base.units import grams_to_kilograms, seconds_to_hours, watts_to_kilowatts
from lightning_predict.hardware import Gpu

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


IDLE_SHARE: Final = 0.2  # Power of a waiting GPU, as a share of its power limit; a rounded figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy of a run on one kind of GPU."""

    gpu: str
    watts: float  # Mean power of one GPU
    kilowatt_hours: float  # Energy of all GPUs over the whole run
    grid_grams_per_kwh: float | None = None  # Carbon intensity of the grid; None if not given
    co2_kilograms: float | None = None  # CO2-equivalent of the energy; None without `grid_grams_per_kwh`
    overhead: float = 1.0  # Total power per watt of the GPU, including cooling; 1 counts the GPU alone


def energy(
    seconds: float,
    gpu: Gpu,
    *,
    busy_share: float,
    num_gpus: int = 1,
    grid_grams_per_kwh: float | None = None,
    overhead: float = 1.0,
) -> Energy:
    """Estimate the energy that GPUs use in a given time.

    Args:
        seconds: The time.
        gpu: The GPU; its power limit counts.
        busy_share: Share of the time in which the GPU computes, in [0, 1].
        num_gpus: Number of GPUs.
        grid_grams_per_kwh: Carbon intensity of the grid, in grams of CO2-equivalent per kWh.
        overhead: Factor for the rest of the machine and its cooling (including the PUE); at least 1.
    """
    if not 1 <= overhead < math.inf:
        raise InvalidArgumentError(f"overhead={overhead!r} is out of range; expected a number of at least 1.")
    watts = gpu.power_watts * (busy_share + IDLE_SHARE * (1 - busy_share)) * overhead
    kilowatt_hours = watts_to_kilowatts(watts) * seconds_to_hours(seconds) * num_gpus
    return Energy(
        gpu=gpu.name,
        watts=watts,
        kilowatt_hours=kilowatt_hours,
        grid_grams_per_kwh=grid_grams_per_kwh,
        overhead=overhead,
        co2_kilograms=None if grid_grams_per_kwh is None else grams_to_kilograms(kilowatt_hours * grid_grams_per_kwh),
    )
