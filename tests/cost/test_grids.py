"""Grids: a number, a region of a cloud, its place, or a country."""

import pytest

from lightning_predict.base.checked import read_toml
from lightning_predict.base.errors import CatalogueError, InvalidArgumentError
from lightning_predict.cost.grids import GRIDS_FILE, grid_of


def test_a_place_is_found_by_its_region_and_by_its_name() -> None:
    zurich = grid_of("europe-west6")
    assert (zurich.grams_per_kwh, zurich.year) == (21.2, 2025)
    assert grid_of("Zurich") == grid_of("zürich") == zurich
    assert zurich.sentence == "21.2 g/kWh (europe-west6, Zürich, 2025)"
    assert grid_of(400).sentence == "400 g/kWh"
    assert grid_of("0").grams_per_kwh == 0.0  # own solar panels


def test_every_row_can_be_asked_for_and_lies_between_water_and_coal() -> None:
    rows = read_toml(GRIDS_FILE, CatalogueError).member("grams_per_kwh").members()
    assert len(rows) >= 40
    for region, row in rows.items():
        assert grid_of(str(region)).grams_per_kwh == row.member("grams").value
        # IPCC (2014): hydropower 24 g/kWh over its life, coal 820; a mix lies within, or below where nothing is burnt.
        assert 5 < grid_of(str(region)).grams_per_kwh < 820


def test_unknown_grid_suggests_the_nearest() -> None:
    with pytest.raises(InvalidArgumentError, match="frankfurt"):
        grid_of("Frankfort")
    with pytest.raises(InvalidArgumentError, match="grid=-1 is out of range; expected grams of CO2 per kWh"):
        grid_of(-1)


def test_a_country_is_found_by_name_and_code() -> None:
    france = grid_of("france")
    # codecarbon's table, copied from Our World in Data: 56.039 g/kWh in 2023.
    assert (france.grams_per_kwh, france.year) == (56.039, 2023)
    assert france == grid_of("FR") == grid_of("fra") == grid_of("France")
    assert france.sentence == "56.039 g/kWh (France, 2023)"
    assert grid_of("Germany").grams_per_kwh == 380.95
    assert grid_of("UK") == grid_of("United Kingdom") == grid_of("GB")
    assert grid_of("belgium").name == "europe-west1, Belgium"  # the newer figure of Google's region there
    assert grid_of("BE").name == "Belgium"


def test_each_country_has_a_figure_with_its_year() -> None:
    countries = read_toml(GRIDS_FILE, CatalogueError).member("countries").members()
    assert len(countries) == 212  # of 213; the table has 0 for the Central African Republic
    for code, row in countries.items():
        found = grid_of(str(code))
        assert found.grams_per_kwh == row.member("grams").value
        assert found.year is not None
        assert 2009 <= found.year <= 2023
    with pytest.raises(InvalidArgumentError, match="not a known region, place or country"):
        grid_of("CF")
