"""Energy, derived by hand: power limit x time where the device computes, a share where it waits; and grids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.checked import read_toml
from lightning_predict.base.errors import CatalogueError, InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.cost.energy import GRIDS_FILE, IDLE_SHARE, energy, grid_of
from lightning_predict.hardware import gpu
from lightning_predict.testing import example_prediction, with_values
from tests.known import known

T4 = gpu("T4")  # 70 W

RUN = example_prediction(  # Two hours in which the device computes half the time
    "T4",
    iteration=Interval(0.009, 0.010, 0.012),
    device_seconds=0.005,
    host_seconds=0.010,
    total=Interval(7200.0, 7200.0, 7200.0),
)


def test_power_is_the_limit_times_gpus_and_overhead_if_always_busy() -> None:
    hour = energy(3600.0, T4, busy_share=1.0)
    assert (hour.gpu, hour.watts, hour.kilowatt_hours) == ("T4", 70.0, 0.07)
    assert hour.co2_kilograms is None
    assert energy(3600.0, T4, busy_share=1.0, num_gpus=8, overhead=1.5).kilowatt_hours == pytest.approx(0.07 * 8 * 1.5)
    assert with_values(RUN, total=None).energy is None
    assert known(with_values(RUN, device_seconds=0.02).energy).watts == 70.0


def test_device_that_waits_takes_a_share_and_a_layout_the_energy_of_its_gpus() -> None:
    found = known(with_values(RUN, grams_per_kwh=500).energy)
    assert found.watts == pytest.approx(70 * (0.5 + IDLE_SHARE * 0.5))  # 42 W at a share of 0.2
    assert found.kilowatt_hours == pytest.approx(0.042 * 2)
    assert found.co2_kilograms == pytest.approx(0.042 * 2 * 0.5)  # 500 g/kWh
    assert found.grid_grams_per_kwh == 500
    # Eight T4 of 70 W, busy throughout, for one hour.
    one = example_prediction(
        "8xT4",
        iteration=Interval(1.0, 1.0, 1.0),
        device_seconds=1.0,
        host_seconds=0.1,
        total=Interval(3600.0, 3600.0, 3600.0),
    )
    found = known(one.energy)
    assert found.gpu == "8xT4"
    assert found.kilowatt_hours == pytest.approx(8 * 0.070)


@given(busy=st.floats(0, 1), seconds=st.floats(0, 1e7))
def test_power_lies_between_waiting_and_the_limit(busy: float, seconds: float) -> None:
    usage = energy(seconds, T4, busy_share=busy)
    assert 70 * IDLE_SHARE - 1e-9 <= usage.watts <= 70 + 1e-9
    assert usage.kilowatt_hours == pytest.approx(usage.watts / 1000 * seconds / 3600)


def test_overhead_below_one_is_out_of_range() -> None:
    with pytest.raises(InvalidArgumentError, match=r"overhead=0\.9 is out of range; expected a number of at least 1"):
        energy(3600.0, T4, busy_share=1.0, overhead=0.9)


def test_grid_is_found_by_region_and_name_and_an_unknown_one_suggests_others() -> None:
    zurich = grid_of("europe-west6")
    assert (zurich.grams_per_kwh, zurich.year) == (21.2, 2025)
    assert grid_of("Zurich") == grid_of("zürich") == zurich
    assert zurich.sentence == "21.2 g/kWh (europe-west6, Zürich, 2025)"
    assert grid_of(400).sentence == "400 g/kWh"
    assert grid_of("0").grams_per_kwh == 0.0  # own solar panels
    with pytest.raises(InvalidArgumentError, match="frankfurt"):
        grid_of("Frankfort")
    with pytest.raises(InvalidArgumentError, match="grid=-1 is out of range; expected grams of CO2 per kWh"):
        grid_of(-1)


def test_grids_of_countries_and_regions_have_dated_figures() -> None:
    rows = read_toml(GRIDS_FILE, CatalogueError).member("grams_per_kwh").members()
    assert len(rows) >= 40
    for region, row in rows.items():
        assert grid_of(str(region)).grams_per_kwh == row.member("grams").value
        # IPCC (2014): hydropower 24 g/kWh over its life, coal 820; a mix lies within, or below where nothing is burnt.
        assert 5 < grid_of(str(region)).grams_per_kwh < 820
    france = grid_of("france")
    # codecarbon's table, copied from Our World in Data: 56.039 g/kWh in 2023.
    assert (france.grams_per_kwh, france.year) == (56.039, 2023)
    assert france == grid_of("FR") == grid_of("fra") == grid_of("France")
    assert france.sentence == "56.039 g/kWh (France, 2023)"
    assert grid_of("Germany").grams_per_kwh == 380.95
    assert grid_of("UK") == grid_of("United Kingdom") == grid_of("GB")
    assert grid_of("belgium").name == "europe-west1, Belgium"  # the newer figure of Google's region there
    assert grid_of("BE").name == "Belgium"
    countries = read_toml(GRIDS_FILE, CatalogueError).member("countries").members()
    assert len(countries) == 212  # of 213; the table has 0 for the Central African Republic
    for code, row in countries.items():
        found = grid_of(str(code))
        assert found.grams_per_kwh == row.member("grams").value
        assert 2009 <= known(found.year) <= 2023
    with pytest.raises(InvalidArgumentError, match="not a known region, place or country"):
        grid_of("CF")
