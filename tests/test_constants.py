"""`constants.toml`: the fast reader, the rows themselves, and the one file of uncertainty."""

from __future__ import annotations

import re
import sys
from time import perf_counter
from typing import Any, Final

import pytest

from lightning_predict.base import constants
from lightning_predict.base.constants import FILE, constants_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE: Final = FILE.parents[1]
KINDS: Final = {"measured", "fitted", "assumed", "documented"}
UNITS_OF_A_SUFFIX: Final = {
    "_SECONDS": {"seconds"},
    "_BYTES": {"bytes"},
    "_BYTES_PER_SECOND": {"bytes/second"},
    "_SHARE": {"share"},
    "_SPREAD": {"factor", "log/log"},
    "_CORRELATION": {"correlation"},
    "_SCATTER": {"log"},
    "_HALF_WIDTH": {"log"},
}


def rows() -> dict[str, dict[str, Any]]:
    """Rows by their full name, as a parser of all of TOML reads them."""
    found: dict[str, dict[str, Any]] = {}

    def collect(name: str, table: dict[str, Any]) -> None:
        if "value" in table:
            found[name] = table
            return
        for key, inner in table.items():
            collect(f"{name}.{key}".lstrip("."), inner)

    collect("", tomllib.loads(FILE.read_text(encoding="utf-8")))
    return found


ROWS: Final = rows()


def test_the_fast_reader_reads_what_the_file_says() -> None:
    for name, row in ROWS.items():
        module, _, own = name.rpartition(".")
        found, value = constants_of(module), row["value"]
        if isinstance(value, list):
            assert found.numbers(own, row["unit"]) == tuple(value), name
        else:
            assert found.number(own, row["unit"]) == value, name


def test_each_row_has_its_evidence() -> None:
    for name, row in ROWS.items():
        assert row["kind"] in KINDS, name
        assert row["about"].strip().endswith("."), name
        assert str(row["date"]) >= "2026-11-21", name
        assert row["kind"] == "assumed" or row["source"].strip(), f"{name} is {row['kind']}: say on what"
        assert ("neutral" in row) == ("group" in row), name


def test_units_agree_with_names() -> None:
    for name, row in ROWS.items():
        for suffix, units in UNITS_OF_A_SUFFIX.items():
            if name.endswith(suffix):
                assert row["unit"] in units, name


def test_each_row_is_taken_by_its_module_alone() -> None:
    """A row that no module takes has no effect, and a second place for its value could differ."""
    for name, row in ROWS.items():
        module, _, own = name.rpartition(".")
        text = (PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert re.search(rf'^{own}\b.*"{own}",\s+"{re.escape(row["unit"])}"', text, re.MULTILINE | re.DOTALL), name


def test_a_wrong_name_or_unit_fails() -> None:
    own = constants_of("lightning_predict.uncertainty")
    with pytest.raises(LookupError, match=r"constants.toml has no uncertainty.MIN_SPRED; correct the name"):
        own.number("MIN_SPRED", "factor")
    with pytest.raises(LookupError, match=r"uncertainty.MIN_SPREAD of constants.toml is in 'factor', not in 'share'"):
        own.number("MIN_SPREAD", "share")


STEP_FOLDERS: Final = ("kernels", "timeline", "layouts", "run")
OWN_UNCERTAINTY: Final = re.compile(
    r"^[A-Z_]*(SPREAD|CORRELATION|HALF_WIDTH|UNCERTAINTY)[A-Z_]*\b[^=\n]*=|\bspread=[0-9]|np\.hypot|math\.hypot",
    re.MULTILINE,
)
NO_UNCERTAINTY: Final = {
    "kernels/roofline.py": 3,  # power and clocks: the quadratic sum of two rates
    "kernels/families/norm.py": 1,  # two limits of a kernel
}
"""Quadratic sums of times and rates, by file."""


def test_only_one_file_forms_the_interval_of_a_step() -> None:
    found = {}
    for folder in STEP_FOLDERS:
        for path in (PACKAGE / folder).rglob("*.py"):
            if hits := OWN_UNCERTAINTY.findall(path.read_text(encoding="utf-8")):
                found[path.relative_to(PACKAGE).as_posix()] = len(hits)
    assert found == NO_UNCERTAINTY, "spreads, correlations and their combination belong into uncertainty.py"


def test_the_file_is_read_in_a_moment() -> None:
    """A parser of all of TOML takes many times as long, which each start of the command line would pay."""
    seconds = []
    for _ in range(5):
        constants._rows.cache_clear()
        start = perf_counter()
        constants._rows()
        seconds.append(perf_counter() - start)
    assert min(seconds) < 0.01
