"""The runner of accuracy tables: it predicts as a user does, and summarises errors."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step, machines, strategy_text
from benchmarks.accuracy.score import Scored, score, tables
from benchmarks.result_files import table_of


def record() -> lp.Trace:
    """Record a linear layer with its update on the meta device."""
    with torch.device("meta"):
        model, data = torch.nn.Linear(512, 512), torch.empty(4096, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return lp.capture(step, samples_per_step=4096)


STEP = Step(name="linear", record=record)
CASE = Case(source="a page", model="linear", gpu="T4", step=STEP, measured=1e-3)


def scored_as(error: float, **fields: object) -> Scored:
    """A case that is predicted too slow by an error, within half and twice the prediction."""
    case = replace(CASE, **fields)  # type: ignore[arg-type]
    middle = case.measured * (1 + error)
    return Scored(case=case, predicted=(middle / 2, middle, 2 * middle))


def test_scores_equal_predict_for_each_gpu_and_quantity() -> None:
    cases = [CASE, replace(CASE, gpu="L4"), replace(CASE, quantity="reserved", measured=1e9)]
    scored, unscored = score(cases)
    predicted = lp.predict(record(), ["T4", "L4"], history=False)
    assert unscored == []
    assert [row.predicted[1] for row in scored] == [
        predicted["T4"].iteration_seconds,
        predicted["L4"].iteration_seconds,
        predicted["T4"].memory.reserved.middle,  # type: ignore[union-attr]
    ]


def test_sums_strategies_releases_and_kernels_reach_the_prediction() -> None:
    (alone,), _ = score([CASE])
    (epoch,), _ = score([replace(CASE, count=250, further=((STEP, 50.0),))])
    assert epoch.predicted == pytest.approx([300 * end for end in alone.predicted])
    (row,), _ = score([replace(CASE, gpu="8xA100-SXM-80GB", strategy="fsdp", release="2.4")])
    expected = lp.predict(record(), ["8xA100-SXM-80GB"], strategy="fsdp", release="2.4", history=False)
    assert row.predicted[1] == expected["8xA100-SXM-80GB"].iteration_seconds
    (eager, compiled), _ = score([CASE, replace(CASE, kernels=("compile",))])
    assert compiled.predicted[1] < eager.predicted[1]


def test_a_case_that_cannot_be_predicted_has_its_reason() -> None:
    def fail() -> lp.Trace:
        raise RuntimeError("no such model")

    cases = [replace(CASE, gpu="T5"), replace(CASE, step=Step(name="none", record=fail))]
    scored, unscored = score(cases)
    assert scored == []
    assert [row.reason.partition(":")[0] for row in unscored] == ["UnknownGpuError", "not recorded"]


def test_summary_lists_the_worst_source_first_and_all_without_chosen_cases() -> None:
    scored = [
        scored_as(0.1, source="near"),
        scored_as(-0.3, source="far"),
        scored_as(0.0, source="far", chosen_on=True),
    ]
    summary, each = (table_of(table) for table in tables("page", scored))
    assert summary.title == "page: time, by source"
    # far: -30 and 0 %, median of sizes 15, bias -15; all but the chosen case: 10 and -30 %, median 20, bias -10.
    assert [row[:5] for row in summary.rows] == [
        ("far", "2", "15.0", "15.0", "-15.0"),
        ("near", "1", "10.0", "10.0", "+10.0"),
        ("constants chosen on them, not in all", "1", "0.0", "0.0", "+0.0"),
        ("all", "2", "20.0", "20.0", "-10.0"),
    ]
    assert len(each.rows) == 3


def test_other_gpus_and_tools_are_compared_on_the_same_step() -> None:
    scored = [scored_as(0.1, said={"tool": 2e-3}), scored_as(0.21, gpu="L4")]
    titles = {table.title: table for table in map(table_of, tables("page", scored))}
    # From 1.1 to 1.21 times the measured time is 1.1, and back 1 / 1.1: errors of 10.0 and 9.1 %.
    assert titles["page: time on one GPU from another's"].rows[-1] == ("all", "2", "9.5", "9.5")
    assert titles["page: time, other tools"].rows[0] == ("tool, as published", "1", "100.0", "100.0", "+100.0")


def test_verdicts_count_by_probability_and_tables_print() -> None:
    fits = Scored(case=replace(CASE, quantity="fits", measured=1), predicted=(0.9, 0.9, 0.9))
    exceeds = Scored(case=replace(CASE, quantity="fits", measured=0), predicted=(0.6, 0.6, 0.6))
    verdicts, _ = (table_of(table) for table in tables("page", [fits, exceeds]))
    assert [row[:3] for row in verdicts.rows] == [("fitted", "1", "100"), ("did not fit", "1", "0"), ("all", "2", "50")]
    console = Console(width=120)
    with console.capture() as capture:
        console.print(*tables("page", [scored_as(0.1)]))
    assert "+10.0" in capture.get()
    text = strategy_text("fsdp", tensor=8, pipeline=1, micro_batches=1, sequence=True, fp8=None)
    assert text == "fsdp,tensor=8,micro_batches=1,sequence=true"


@pytest.mark.parametrize(
    ("count", "name"), [(1, "L4"), (8, "8xL4"), (16, "2x8xL4"), (4, "4xL4")], ids=["one", "machine", "two", "half"]
)
def test_layouts_are_machines_of_eight(count: int, name: str) -> None:
    assert machines("L4", count) == name
