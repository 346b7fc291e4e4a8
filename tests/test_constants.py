"""`constants.toml`: evidence for each empirical constant, and the one file of uncertainty."""

import ast
import re
import sys
from pathlib import Path
from typing import Any, Final

import lightning_predict

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE: Final = Path(lightning_predict.__file__).parent
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
    """Rows by the full name of their constant."""
    tables: dict[str, dict[str, Any]] = {}

    def collect(name: str, table: dict[str, Any]) -> None:
        if "kind" in table:
            tables[name] = table
            return
        for key, inner in table.items():
            collect(f"{name}.{key}".lstrip("."), inner)

    collect("", tomllib.loads((PACKAGE / "base" / "constants.toml").read_text(encoding="utf-8")))
    return tables


ROWS: Final = rows()


def constants(module: str) -> set[str]:
    """Names of a module's constants with a number, a list of numbers or an array of them as value."""
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    return {
        node.target.id
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and node.value is not None
        and isinstance(node.target, ast.Name)
        and not any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node.value))
        and any(isinstance(part, ast.Constant) for part in ast.walk(node.value))
    }


def test_each_row_has_its_evidence_unit_and_constant() -> None:
    for name, row in ROWS.items():
        assert row["kind"] in KINDS, name
        assert str(row["date"]) >= "2026-11-21", name
        assert row["kind"] == "assumed" or row["source"].strip(), f"{name} is {row['kind']}: say on what"
        assert ("neutral" in row) == ("group" in row), name
        assert not {"value", "about"} & set(row), f"{name}: value and meaning stand in the module"
    for name, row in ROWS.items():
        for suffix, units in UNITS_OF_A_SUFFIX.items():
            if name.endswith(suffix):
                assert row["unit"] in units, name
    modules = {name.rpartition(".")[0] for name in ROWS}
    defined = {f"{module}.{name}" for module in modules for name in constants(module)}
    assert set(ROWS) <= defined


STEP_FOLDERS: Final = ("kernels", "timeline", "layouts", "run")
OWN_UNCERTAINTY: Final = re.compile(
    r"^[A-Z_]*(SPREAD|CORRELATION|HALF_WIDTH|UNCERTAINTY)[A-Z_]*\b[^=\n]*=|\bspread=[0-9]|np\.hypot|math\.hypot",
    re.MULTILINE,
)
NO_UNCERTAINTY: Final = {  # Quadratic sums of times and rates, by file
    "kernels/roofline.py": 3,  # power and clocks: the quadratic sum of two rates
    "kernels/families/norm.py": 1,  # two limits of a kernel
}


def test_only_one_file_forms_the_interval_of_a_step() -> None:
    counts = {}
    for folder in STEP_FOLDERS:
        for path in (PACKAGE / folder).rglob("*.py"):
            if hits := OWN_UNCERTAINTY.findall(path.read_text(encoding="utf-8")):
                counts[path.relative_to(PACKAGE).as_posix()] = len(hits)
    assert counts == NO_UNCERTAINTY, "spreads, correlations and their combination belong into uncertainty.py"
