"""Columns for the energy of a run and its CO2, shown where somebody asked for them.

Example::

    energies = {one.gpu: prediction_energy(one, grid_grams_per_kwh=380) for one in result.values()}
    print(plain_table(result, extra=energy_columns(energies)))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lightning_predict.cost.energy import Energy
from lightning_predict.cost.records import Prediction
from lightning_predict.reports.columns import Column
from lightning_predict.reports.format import significant
from lightning_predict.reports.predictions import Predictions


def energy_columns(energies: Mapping[str, Energy | None]) -> tuple[Column, ...]:
    """A column of kWh, and one of CO2 where a grid's intensity was given.

    Args:
        energies: By GPU name; None where the length of the run is unknown.
    """
    grids = {one.grid_grams_per_kwh for one in energies.values() if one is not None} - {None}

    def kilowatt_hours(prediction: Prediction) -> str | None:
        found = energies.get(prediction.gpu)
        return None if found is None else significant(found.kilowatt_hours)

    def co2(prediction: Prediction) -> str | None:
        found = energies.get(prediction.gpu)
        return None if found is None or found.co2_kilograms is None else significant(found.co2_kilograms)

    def notes(_: Predictions) -> Iterable[str]:
        grid = "".join(f" CO2 at {grams:g} g/kWh." for grams in sorted(one for one in grids if one is not None))
        yield f"Energy: of the GPU alone, at its power limit while it computes; an upper estimate.{grid}"

    energy = Column(header="energy\n(kWh)", cell=kilowatt_hours, justify="right", notes=notes)
    return (energy, Column(header="CO2\n(kg)", cell=co2, justify="right")) if grids else (energy,)
