"""The command on a small plan: axes, summaries, and the printed summary."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.accuracy import regressions
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.regressions import (
    ALL_BENCHMARKS,
    PUBLISHED,
    AxisScore,
    ExtrapolationScore,
    SweepPlan,
    axis_scores,
    cpu_scores,
    evaluate_regressions,
    print_report,
    published_figures,
    published_number_scores,
    published_power_scores,
)
from lightning_predict.hardware import gpu
from lightning_predict.kernels.roofline import sustained_flops

SMALL = SweepPlan(
    models=("AlexNet",),
    batch_sizes=(2, 4, 8, 16),
    largest_fitted_batch=8,
    gpus=("T4",),
    numbers=(1, 2, 4),
    largest_fitted_number=2,
    slower=("P4", "T4"),
    faster=("A100-PCIe-40GB",),
    depths=(1, 2, 3, 4),
    largest_fitted_depths=(3,),
    depth_batch_sizes=(64,),  # the device decides: at 2, a pause of this processor while recording would show
)

SCORE = ExtrapolationScore(
    variable="batch_size", limit=64, fitted=6, errors=(0.1, -0.3), inside=0.5, formula="seconds per iteration = 1"
)


@pytest.fixture(scope="module")
def axes() -> list[AxisScore]:
    return axis_scores(SMALL)


def test_every_axis_is_split_at_its_limit(axes: list[AxisScore]) -> None:
    assert [(one.model, one.where, one.score.variable) for one in axes] == [
        ("AlexNet", "1 x T4", "batch_size"),
        ("AlexNet", "2 x T4", "batch_size"),
        ("AlexNet", "4 x T4", "batch_size"),
        ("AlexNet", "T4", "num_gpus"),
        ("AlexNet", "2 GPUs, A100-PCIe-40GB", "flops_per_second"),
        ("ResNet", "T4", "inner_modules"),
    ]
    # 4 batch sizes on 1 and 2 GPUs are fitted and on 4 predicted; on P4 and T4 fitted and on the A100 predicted.
    assert [(one.score.fitted, len(one.score.errors)) for one in axes] == [(3, 1)] * 3 + [(8, 4), (8, 4), (3, 1)]
    assert not any(one.is_measured for one in axes)


def test_a_deeper_resnet_is_nearly_on_the_line(axes: list[AxisScore]) -> None:
    # Each bottleneck adds about the same work, so three depths foretell the fourth within a tenth.
    assert axes[-1].score.mean_error < 0.1


def test_published_errors_stand_beside_the_same_network_and_axis(axes: list[AxisScore]) -> None:
    assert axes[0].published == PUBLISHED["AlexNet", "batch_size"] == "0.4 - 11"
    assert AxisScore("small network", "here", SCORE, 0.0, 0.0).published is None


def test_a_measured_sweep_says_so() -> None:
    (score,) = cpu_scores(batch_sizes=(1, 2, 3, 4), largest_fitted=3, steps=1)
    assert score.is_measured
    assert (score.score.fitted, len(score.score.errors)) == (3, 1)


def test_published_throughputs_of_eight_gpus_are_predicted_from_fewer(tmp_path: Path) -> None:
    lines = ["gpu_reported,n_gpus,model,precision_label,batch,pytorch,throughput"]
    # Without any loss, and with an efficiency of 80 % from the second GPU on; and a sweep that ends at four GPUs.
    for precision, efficiency, numbers in (
        ("FP32", 1.0, (1, 2, 4, 8)),
        ("AMP", 0.8, (1, 2, 4, 8)),
        ("FP16", 1.0, (1, 4)),
    ):
        for count in numbers:
            rate = 100 * count * (efficiency if count > 1 else 1.0)
            lines.append(f"Tesla V100-SXM2-16GB,{count},resnet50,{precision},32,1.13.0a0,{rate}")
    path = tmp_path / "training_throughput.csv"
    path.write_text(lines[0] + "\n" + lines[1] + "\n")
    assert published_number_scores(path) == []  # one GPU alone
    path.write_text("\n".join(lines) + "\n")
    score, together = published_number_scores(path)
    assert (together.model, together.score) == ("all benchmarks", score.score)
    assert (score.model, score.where, score.is_measured) == ("resnet50", "2 published sweeps", True)
    assert score.score.fitted == 6  # one, two and four GPUs, twice
    lossless, lossy = score.score.errors
    assert lossless == pytest.approx(0)
    # Three runs that take 1, 1.25 and 1.25 do not differ significantly: their mean, each weighted by 1 / t², is
    # (1 + 2 / 1.25) / (1 + 2 / 1.5625) = 1.1404, where eight GPUs take 1.25.
    assert lossy == pytest.approx((1 + 2 / 1.25) / (1 + 2 / 1.5625) / 1.25 - 1)


def test_faster_gpus_are_predicted_from_slower_ones(tmp_path: Path) -> None:
    # Seconds of 32 samples are 1e13 FLOPs at the sustained rate and 1e12 bytes at the bandwidth, on each of seven GPUs.
    reported = {
        "Tesla P4": "P4",
        "Tesla T4": "T4",
        "Tesla P100-PCIE-16GB": "P100-PCIe-16GB",
        "Tesla V100-PCIE-32GB": "V100-PCIe-32GB",
        "NVIDIA L4": "L4",
        "NVIDIA A100-PCIE-40GB": "A100-PCIe-40GB",
        "NVIDIA H100 80GB HBM3": "H100-SXM-80GB",
    }
    lines = ["gpu_reported,n_gpus,model,precision_label,batch,pytorch,throughput"]
    for name, known in reported.items():
        card = gpu(known)
        for batch in (16, 32, 64):
            seconds = batch / 32 * (1e13 / sustained_flops(card, "float32") + 1e12 / card.dram_bytes_per_second)
            lines.append(f"{name},1,resnet50,FP32,{batch},1.13.0a0,{batch / seconds}")
    path = tmp_path / "training_throughput.csv"
    path.write_text("\n".join(lines) + "\n")
    score, together = published_power_scores(path)
    assert (together.model, together.score) == ("all benchmarks", score.score)
    assert (score.model, score.score.variable, score.is_measured) == ("resnet50", "flops_per_second", True)
    assert (score.score.fitted, len(score.score.errors)) == (12, 9)  # four slow GPUs; L4, A100, H100
    assert score.score.mean_error < 0.01  # both rates are terms; with peaks alone the L4 would be far too fast
    assert score.error_as_published > 0.1


def test_everything_is_printed() -> None:
    axes = (
        AxisScore("AlexNet", "1 x T4", SCORE, 0.3, 0.5),
        AxisScore("AlexNet", "2 x T4", replace(SCORE, errors=(0.4,), inside=None), 0.6, 0.7),
        AxisScore("small network", "this processor", replace(SCORE, errors=(0.05,)), 0.02, 0.01, is_measured=True),
    )
    out = io.StringIO()
    print_report(axes, Console(file=out, width=200))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "AlexNet batch size simulated 1 x T4 64 6 2 20.0 20.0 50.0 30.0 50.0" in lines
    assert "AlexNet batch size simulated 2 x T4 64 6 1 40.0 40.0 - 60.0 70.0" in lines
    # The least, the median and the largest of 20 % and 40 %; the medians of 30 and 60 % and of 50 % and 70 %.
    assert "AlexNet batch size simulated 20.0 30.0 40.0 45.0 60.0 0.4 - 11" in lines
    assert "small network batch size measured 5.0 5.0 5.0 2.0 1.0 -" in lines
    assert "batch size simulated 2 50.0" in lines  # where there are intervals, half of the runs lie in them
    assert "Ours are simulated by this package's own predictions" in " ".join(lines)


def test_the_documentation_quotes_all_published_benchmarks_together() -> None:
    faster = replace(SCORE, variable="flops_per_second")
    axes = (
        AxisScore("resnet50", "3 published sweeps", faster, 0.3, 0.5, is_measured=True),
        AxisScore(ALL_BENCHMARKS, "3 published sweeps", faster, 0.3, 0.5, is_measured=True),
        AxisScore("AlexNet", "1 x T4", SCORE, 0.3, 0.5),
    )
    assert {one.name: one.value for one in published_figures(axes)} == {
        "faster GPUs": "20",
        "faster GPUs, five features": "30",
        "faster GPUs, inside": "50",
    }


def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], axes: list[AxisScore], tmp_path: Path
) -> None:
    asked: list[tuple[Path | None, bool]] = []

    def evaluated(*, throughputs: Path | None, measures_cpu: bool) -> tuple[AxisScore, ...]:
        asked.append((throughputs, measures_cpu))
        return tuple(axes)

    monkeypatch.setattr(regressions, "evaluate_regressions", evaluated)
    assert main([str(tmp_path), "--of", "regressions"]) == 0
    (tmp_path / "training_throughput.csv").touch()
    assert main([str(tmp_path), "--of", "regressions", "--measure-cpu"]) == 0
    assert asked == [(None, False), (tmp_path / "training_throughput.csv", True)]
    assert "AlexNet" in capsys.readouterr().out


def test_parts_can_be_left_out() -> None:
    assert evaluate_regressions(plan=replace(SMALL, models=(), depths=())) == ()
