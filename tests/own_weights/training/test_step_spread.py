"""Parts of whole steps' intervals, fitted to made-up results."""

import math

import pytest

from benchmarks.result_files import Result, ResultTable
from benchmarks.training.step_spread import StepError, coverage, deviations, half_width, left_out


def result(name: str, *rows: tuple[str, str]) -> Result:
    """A table of steps with their settings and errors."""
    columns = ("model", "GPU", "setting", "error %", "inside", "width")
    table = ResultTable(
        title=f"{name}: time, each",
        columns=columns,
        names=3,
        rows=tuple(("ResNet-50", "T4", setting, error, "yes", "1.50") for setting, error in rows),
    )
    return Result(name=name, command="", date="2026-11-29", commit="0123456", split="held out", tables=(table,))


def test_a_source_deviates_by_the_median_of_its_steps() -> None:
    fused = [("fsdp, ran compile", "+50.0"), ("ran transformer_engine", "+50.0"), ("ran compile", "+60.0")]
    page = result("page", ("", "+10.0"), ("ddp", "-20.0"), ("", "+12.0"), ("data loader", "-60.0"), *fused)
    few = result("few", ("", "+10.0"))
    assert deviations([page, few], fused=False) == {"page": pytest.approx(math.log(1.1))}
    assert deviations([page, few], fused=True) == {"page": pytest.approx(math.log(1.5))}


def test_the_worst_source_does_not_widen_the_others() -> None:
    # sqrt((0.1² + 0.1²) / 2) = 0.1, times 1.645
    assert half_width([0.1, -0.1, 2.0]) == pytest.approx(0.1645, rel=1e-3)


def test_a_source_is_compared_with_the_others_alone() -> None:
    # The half width of three sources at 0.1 is 0.1645; of 0.1, 0.1 and -0.329 it is the same, the worst left out.
    far = left_out({"a": 0.1, "b": 0.1, "c": 0.1, "far": -0.329})
    assert far == {"a": 0.61, "b": 0.61, "c": 0.61, "far": -2.0}


def test_a_source_is_covered_by_the_width_that_the_others_select() -> None:
    # Three steps at 0.1 inside exp(2 x 0.12); without the shipped part of 0.1, their own is sqrt(0.12² - 0.1²) = 0.066.
    # The others' medians of 0.05 select 1.645 x 0.05 = 0.082, together 0.106: still inside. At 0.11, it is outside.
    others = {name: [StepError(0.05, 0.12)] * 3 for name in ("a", "b", "c")}
    own = [StepError(0.1, 0.12), StepError(0.1, 0.12), StepError(0.11, 0.12)]
    row = next(iter(coverage({"own": own, **others}, 0.1)))
    assert row == ["own", "3", "100", f"{math.exp(0.24):.2f}", "67", f"{math.exp(2 * 0.1057):.2f}"]
