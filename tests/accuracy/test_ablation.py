"""The list of empirical constants, and predictions without some of them."""

import ast
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

import lightning_predict as lp
from benchmarks.accuracy.ablation import (
    FILE,
    PACKAGE,
    Score,
    ablate,
    keeping,
    neutral,
    read_constants,
    read_scores,
    worth,
)

ROOT = Path(__file__).parents[2]
ORIGINS = ("fitted", "training data", "chosen on", "assumption", "own measurements", "median of")
"""Words of a docstring that say that a value is empirical."""


def test_constants_are_rows_with_an_effect_worth_the_largest_loss() -> None:
    for constant in read_constants():
        assert constant.value != constant.neutral, f"{constant.name} is neutral already: remove it"
    rows = FILE.read_text(encoding="utf-8")
    without = {name for name in empirical_constants() if f"[{'.'.join(name)}]" not in rows}
    assert without == set(), f"add their evidence to {FILE.name}, with a neutral value"
    before = {"steps": Score(10, 0.050, 0.9), "operators": Score(10, 0.100, 0.8)}
    same = {"steps": Score(10, 0.050, 0.9), "operators": Score(10, 0.095, 0.8)}
    worse = {"steps": Score(10, 0.052, 0.9), "operators": Score(10, 0.095, 0.8)}
    narrow = {"steps": Score(10, 0.050, 0.9), "operators": Score(10, 0.100, 0.7)}
    assert worth(before, same) == pytest.approx(0.0)
    assert worth(before, worse) == pytest.approx(0.2)  # 5.2 % instead of 5.0 %
    assert worth(before, narrow) == pytest.approx(10.0)  # 70 % is 10 points further from 90 % than 80 %


def empirical_constants() -> set[tuple[str, str]]:
    """Constants of the kernels whose own docstring says that they were measured, fitted or assumed."""
    constants = set()
    for path in (ROOT / PACKAGE / "kernels").rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for statement, after in pairwise(body):
            if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Constant)):
                continue
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                value, text = statement.value.value, str(after.value.value)
                if isinstance(value, float) and any(origin in text for origin in ORIGINS):
                    module = ".".join(path.relative_to(ROOT / PACKAGE).with_suffix("").parts)
                    constants.add((module, ast.unparse(statement.target)))
    return constants


def test_a_neutral_constant_changes_predictions_and_comes_back() -> None:
    """SINGLE_RATE is the share of TF32 at which fused attention in float32 runs; its neutral value is a third."""
    (rate,) = (constant for constant in read_constants() if constant.name == "SINGLE_RATE")

    def seconds() -> float:
        own = lp.operator_seconds(
            "attention", "A100-SXM-80GB", dtype="float32", batch=64, heads=16, seq=2048, head_dim=64
        )
        return float(own)

    before = seconds()
    with neutral([rate]):
        assert seconds() < before
    assert seconds() == before


def fail() -> Mapping[str, Score]:
    raise AssertionError("every score was kept")


def test_an_interrupted_ablation_continues_from_its_kept_scores(tmp_path: Path) -> None:
    groups = {constant.group for constant in read_constants()}
    names = ["none", *(f"{group}|all" for group in groups)]
    kept = {name: {"steps": [10, 9.0 if name == "norms|all" else 5.0, 90.0]} for name in names}
    file = tmp_path / "scores.json"
    file.write_text(json.dumps(kept), encoding="utf-8")
    table = ablate(keeping(read_scores(file), file, fail), Console(quiet=True), groups_only=True)
    groups_column, *_, keep = (list(column.cells) for column in table.columns)
    assert [group for group, kept_or_not in zip(groups_column, keep, strict=True) if kept_or_not == "yes"] == [
        "none",
        "norms",
    ]
    assert json.loads(file.read_text(encoding="utf-8")) == kept  # nothing was scored again
