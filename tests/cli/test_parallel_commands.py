"""`parallel` and `curve` on a recorded transformer."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lightning_predict as lp
from lightning_predict.record.precision import in_precision
from lightning_predict.reports.cost_curve import CostCurve, CurvePoint, cost_curves, layouts_up_to, table_of
from lightning_predict.testing import example_trace
from tests.cli.conftest import Run
from tests.workloads.gpt import Gpt, GptConfig


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step of eight samples of a small GPT."""
    with torch.device("meta"):
        model = Gpt(GptConfig(layers=2, hidden=1024, heads=8, vocabulary=1024, context=128))
        tokens = torch.zeros(8, 128, dtype=torch.int64)
    path = tmp_path_factory.mktemp("trace") / "gpt.json.gz"
    lp.capture(lambda: model(tokens).float().sum().backward(), samples_per_step=8).save(str(path))
    return path


def test_parallel_equals_best_layouts(gpt: Path, run: Run) -> None:
    ran = run("parallel", gpt, "--gpus", "4xH100-SXM-80GB", "--count", "3", "--iterations", "100")
    assert ran.code == 0
    said, table, notes = ran.out.split("\n\n")
    assert said.startswith(
        "A step is 8 samples of 128 tokens on each data-parallel group; in all, the samples of 100 steps as recorded.\n"
        "On 4xH100-SXM-80GB ($"
    )
    head, _, *rows = table.splitlines()
    assert head.split() == "step (90 %) tokens/s tokens/$ total cost GiB fits bound by strategy".split()
    assert len(rows) == 3
    assert notes.startswith("Of the first:\n")
    layouts = lp.best_layouts(lp.Trace.load(str(gpt)), ["4xH100-SXM-80GB"], count=3, iterations=100)
    assert [row.split()[-1] for row in rows] == [layout.strategy.name for layout in layouts]
    assert [layout.seconds_per_batch for layout in layouts] == sorted(layout.seconds_per_batch for layout in layouts)
    compiled = run("parallel", gpt, "--gpus", "4xH100-SXM-80GB", "--kernels", "compile", "--count", "1")
    assert "), with kernels of compile:" in compiled.out.replace("\n  ", " ")
    values = run("parallel", gpt, "--gpus", "4xH100-SXM-80GB", "--count", "1", "--json").json
    assert values[0]["kernels"] == values[0]["lacked_kernels"] == []
    assert values[0]["strategy"] == layouts[0].strategy.name
    assert values[0]["iteration_seconds"] == pytest.approx(layouts[0].prediction.iteration_seconds)
    # What predict says of the same strategy.
    same = lp.predict(lp.Trace.load(str(gpt)), ["4xH100-SXM-80GB"], strategy=layouts[0].strategy, history=False)
    assert same["4xH100-SXM-80GB"].iteration_seconds == pytest.approx(layouts[0].prediction.iteration_seconds)
    assert same["4xH100-SXM-80GB"].memory_bytes == pytest.approx(layouts[0].prediction.memory_bytes)


def test_iterations_are_steps_of_the_global_batch(gpt: Path, run: Run) -> None:
    words = ("parallel", gpt, "--gpus", "4xH100-SXM-80GB", "--usd-per-hour", "2", "--count", "1")
    ran = run(*words, "--global-batch", "64", "--max-micro-batch", "16", "--iterations", "1000")
    assert " ".join(ran.out.split()).startswith(
        "A step is the global batch, 64 samples of 128 tokens; 1,000 of them in all. Micro-batches are of 8 samples at "
        "most, as recorded. On 4xH100-SXM-80GB ($8.00/h, your own price):"
    )
    (entry,) = run(*words, "--global-batch", "64", "--iterations", "1000", "--json").json
    assert entry["total_seconds"] == pytest.approx(1000 * entry["iteration_seconds"], rel=1e-3)
    assert entry["cost_usd"] == pytest.approx(8.0 * entry["total_seconds"] / 3600)
    # 64 samples in a step, and as many tokens for a dollar as the run buys.
    assert entry["samples_per_second"] == pytest.approx(64 / entry["iteration_seconds"])
    assert entry["tokens_per_usd"] == pytest.approx(1000 * 64 * 128 / entry["cost_usd"], rel=1e-3)


def test_one_gpu_has_one_strategy_and_rows_name_their_layout(gpt: Path, run: Run) -> None:
    (entry,) = run("parallel", gpt, "--gpus", "L4", "--json").json
    assert entry["strategy"] == "ddp"
    (four,) = run("parallel", gpt, "--gpus", "L4", "--global-batch", "32", "--json").json
    assert four["strategy"] == "ddp,accumulate=4"
    ran = run("parallel", gpt, "--gpus", "L4", "--max-micro-batch", "2")
    assert "No strategy makes --max-micro-batch 2 on L4 out of batches of 8 recorded sample(s)" in ran.err
    ran = run("parallel", gpt, "--gpus", "2xH100-SXM-80GB,4xH100-SXM-80GB", "--usd-per-hour", "2", "--count", "20")
    assert "On 4xH100-SXM-80GB ($8.00/h, your own price); 2xH100-SXM-80GB ($4.00/h, your own price):" in ran.out
    rows = ran.out.split("\n\n")[1].splitlines()[2:]
    assert {row.split()[0] for row in rows} == {"2xH100-SXM-80GB", "4xH100-SXM-80GB"}


def test_strategies_and_curves_of_an_old_gpu_are_in_the_precision_of_predict(tmp_path: Path, run: Run) -> None:
    trace = in_precision(replace(example_trace(2048), samples=8), "bfloat16")
    path = tmp_path / "step.json.gz"
    trace.save(str(path))
    (found,), (modern,) = (lp.best_layouts(trace, [name], count=1) for name in ("T4", "L4"))
    assert (found.prediction.precision, modern.prediction.precision) == ("16-mixed", None)
    predicted = lp.predict(trace, gpus=["T4"], history=False)["T4"].iteration_seconds
    assert found.prediction.iteration_seconds == pytest.approx(predicted)
    heading = " ".join(run("parallel", path, "--gpus", "T4").out.split())
    assert "in 16-mixed because bfloat16 is emulated there:" in heading
    measured = replace(trace, device="cuda:0", gpu_reported_name="Tesla T4", step_seconds=(0.1,))
    assert lp.best_layouts(measured, ["T4"], count=1)[0].prediction.precision is None  # the GPU in use
    words = " ".join(run("curve", path, "--gpus", "4xT4").out.split())
    assert "T4, 2xT4, 4xT4: predicted in 16-mixed, because bfloat16 is emulated." in words


def test_strategies_above_budget_are_left_out(gpt: Path, run: Run) -> None:
    words = ("parallel", gpt, "--gpus", "2xH100-SXM-80GB", "--usd-per-hour", "2", "--count", "2")
    ran = run(*words, "--budget", "1e-9", "--iterations", "100")
    assert ran.code == 2
    assert "--budget 1e-09 pays for no strategy that fits: the cheapest costs $" in ran.err
    ran = run(*words, "--budget", "5")
    assert ran.code == 2
    assert "--budget 5 needs --iterations N, the number of remaining steps." in ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--budget -1 --iterations 10", "--budget -1; expected dollars above 0."),
        ("--mtbf-hours 0", "--mtbf-hours 0.0; expected a number above 0."),
        ("--checkpoint-gbps -1", "--checkpoint-gbps -1.0; expected a number above 0."),
        ("--restart-minutes nan", "--restart-minutes nan; expected a number above 0."),
        ("--global-batch 7", "No strategy makes --global-batch 7 on 4xH100-SXM-80GB out of batches of 8 recorded"),
    ],
)
def test_parallel_rejects_invalid_options(gpt: Path, run: Run, words: str, message: str) -> None:
    ran = run("parallel", gpt, "--gpus", "4xH100-SXM-80GB", *words.split())
    assert ran.code == 2
    assert message in ran.err


def test_machine_names_are_layouts_with_their_price(gpt: Path, run: Run) -> None:
    one, two = (
        run("parallel", gpt, "--gpus", gpus, "--count", "1", "--json").json[0]
        for gpus in ("p4d.24xlarge", "2xp4d.24xlarge")
    )
    assert (one["layout"], one["offer"].split(" (")[0]) == ("8xA100-SXM-40GB", "AWS p4d.24xlarge")
    assert two["layout"] == "2x8xA100-SXM-40GB"


def test_totals_include_failures_and_the_work_lost_on_spot(gpt: Path, run: Run) -> None:
    """An interruption an hour and GPU: four of them fail every 15 minutes, and ten of these go to each restart."""
    words = ("parallel", gpt, "--gpus", "4xH100-SXM-80GB", "--usd-per-hour", "2", "--count", "1", "--iterations", "1e7")
    (calm,) = run(*words, "--json").json
    (rough,) = run(*words, "--mtbf-hours", "1", "--json").json
    assert rough["goodput"] < 0.7
    for name in ("total_seconds", "cost_usd"):
        assert rough[name] == pytest.approx(calm[name] / rough["goodput"])
    assert rough["tokens_per_usd"] == pytest.approx(calm["tokens_per_usd"] * rough["goodput"])
    assert rough["tokens_per_second"] == calm["tokens_per_second"]  # while it trains
    said = run(*words, "--restart-minutes", "10").out  # one of the three options turns all on
    assert "4xH100-SXM-80GB: a failure every 527 d 21 h; a checkpoint of " in said  # 54 d x 16,384 / 419 / 4
    assert "Goodput: share of the time left after failures, checkpoints and repeated work" in said
    rented = ("parallel", gpt, "--gpus", "p5.48xlarge", "--count", "1", "--iterations", "1e7")
    (steady,) = run(*rented, "--json").json
    (spot,) = run(*rented, "--spot", "--mtbf-hours", "100", "--json").json
    assert spot["offer"].startswith("AWS p5.48xlarge spot (")
    assert spot["usd_per_hour"] < steady["usd_per_hour"]
    assert spot["cost_usd"] == pytest.approx(
        steady["cost_usd"] * spot["usd_per_hour"] / steady["usd_per_hour"] / spot["goodput"]
    )


def test_curve_goes_up_to_the_largest_layout(gpt: Path, run: Run, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    words = ("curve", gpt, "--gpus", "2x4xH100-SXM-80GB", "--iterations", "1000", "--output", report)
    ran = run(*words)
    assert ran.code == 0
    sizes = [line.split()[0].removesuffix("H100-SXM-80GB") for line in ran.out.splitlines()[2:6]]
    assert sizes == ["", "2x", "4x", "2x4x"]
    assert "Further GPUs save time" in ran.out
    page = report.read_text(encoding="utf-8")
    assert "More H100-SXM-80GB" in page
    answer = run(*words[:-2], "--json").json
    assert [point["gpus"] for point in answer["curves"][0]["points"]] == [1, 2, 4, 8]
    assert answer["curves"][0]["points"][0]["efficiency"] == pytest.approx(1.0)
    few = run("curve", gpt, "--gpus", "2xH100-SXM-80GB")
    assert few.code == 2
    assert "makes no curve of 2 layout(s); name a layout of four GPUs or more" in few.err


def test_curve_doubles_gpus_within_machines_while_they_pay_off() -> None:
    assert [layout.name for layout in layouts_up_to("3x8xL4")] == ["L4", "2xL4", "4xL4", "8xL4", "2x8xL4", "3x8xL4"]
    assert [layout.name for layout in layouts_up_to("6xT4")] == ["T4", "2xT4", "4xT4", "6xT4"]

    def point(gpus: int, throughput: float) -> CurvePoint:
        return CurvePoint(f"{gpus}xL4", gpus, throughput, None, None, None, throughput / gpus / 10, None)

    # 10 samples a second on one; the second adds 9, the next two 6.5 each, the last four 2.5 each, less than 5.
    curve = CostCurve("L4", (point(1, 10), point(2, 19), point(4, 32), point(8, 42)))
    assert curve.pays_up_to.gpus == 4
    assert curve.sentence.startswith("Further GPUs save time up to 4xL4 (80 % efficiency); in 8xL4 each of those added")
    assert CostCurve("L4", curve.points[:3]).sentence.endswith("the largest asked for, at 80 % efficiency.")


@pytest.mark.parametrize(
    ("last", "saved"), [(50.57, "time, not money,"), (131.14, "time, not money,"), (40.0, "time and money")]
)
def test_curve_says_whether_time_or_money_is_saved(last: float, saved: str) -> None:
    points = [
        CurvePoint(f"{gpus}xL4", gpus, 9.0 * gpus, None, None, cost, 0.9, None)
        for gpus, cost in ((1, 50.57), (2, 60.0), (4, last))
    ]
    assert CostCurve("L4", tuple(points)).sentence == (
        f"Further GPUs save {saved} up to 4xL4, the largest asked for, at 90 % efficiency. "
        f"A million samples cost ${last:.2f} on 4xL4, $50.57 on 1xL4."
    )


@pytest.mark.parametrize(
    ("fits", "sentence"),
    [
        (
            (False, False, False),
            "The step fits on none of these layouts. Try another --strategy, as fsdp;",
        ),
        ((False, False, True), "The step fits only on 4xL4. Try another --strategy, as fsdp;"),
        (
            (False, True, True),
            "Further GPUs save time, not money, up to 4xL4, the largest asked for, at 90 % efficiency. "
            "A million samples cost $7.00 on 4xL4, $6.00 on 2xL4.",
        ),
        ((True, True, False), "Further GPUs save time, not money, up to 2xL4, the largest that fits"),
    ],
)
def test_a_curve_recommends_no_layout_that_the_step_does_not_fit(fits: Sequence[bool], sentence: str) -> None:
    points = [
        CurvePoint(f"{gpus}xL4", gpus, 9.0 * gpus, None, None, cost, 0.9, does)
        for gpus, cost, does in zip((1, 2, 4), (5.0, 6.0, 7.0), fits, strict=True)
    ]
    assert CostCurve("L4", tuple(points)).sentence.startswith(sentence)


def test_a_curve_is_priced(gpt: Path) -> None:
    names = ["L4", "2xL4", "4xL4"]
    result = lp.predict(lp.Trace.load(str(gpt)), names, usd_per_hour=2.0, history=False)
    (curve,) = cost_curves(result)
    for point in curve.points:
        # Two dollars an hour and GPU (or machine, as predict has it) for a million samples at this throughput.
        assert point.usd_per_million_samples == pytest.approx(
            (result[point.name].usd_per_hour or 0) * 1e6 / point.samples_per_second / 3600
        )


def test_curve_omits_unknown_columns_and_names_provider_changes() -> None:
    def point(gpus: int, provider: str) -> CurvePoint:
        return CurvePoint(f"{gpus}xL4", gpus, 10.0 * gpus, None, None, 5.0 * gpus, 1.0, None, provider)

    curve = CostCurve("L4", (point(1, "Pods"), point(2, "Pods"), point(8, "Racks")))
    headers, rows = table_of(curve)
    assert headers == ["GPUs", "samples/s", "efficiency", "per million samples"]  # no length, hence no time and no cost
    assert rows[-1] == ["8xL4", "80.0", "100 %", "$40.00"]
    assert curve.sentences[1] == ("The provider and its price change along this curve (1xL4, 2xL4: Pods; 8xL4: Racks).")
    assert len(CostCurve("L4", curve.points[:2]).sentences) == 1
