"""The report of the papers' experiments on small tables."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.accuracy.seeds import (
    PUBLISHED_COSTS,
    PairScore,
    dcgan_trace,
    habitat_scores,
    habitat_table,
    inception_trace,
    planning_table,
)


def printed(table: object) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_pairs_are_of_one_container_and_precision(tmp_path: Path) -> None:
    lines = ["gpu_reported,n_gpus,model,precision_label,batch,pytorch,throughput"]
    for gpu, rate in (("Tesla T4", 100), ("Tesla V100-SXM2-16GB", 300)):
        lines += [f"{gpu},1,resnet50,FP32,32,1.13.0a0,{rate}", f"{gpu},1,resnet50,AMP,32,1.13.0a0,{2 * rate}"]
    (tmp_path / "training_throughput.csv").write_text("\n".join(lines) + "\n")
    (resnet, gnmt, transformer) = habitat_scores(tmp_path)
    assert (resnet.model, resnet.gpus, len(resnet.errors)) == ("ResNet-50", 2, 2)
    # What is too long one way is too short the other way.
    assert (1 + resnet.errors[0]) * (1 + resnet.errors[1]) == pytest.approx(1)
    assert gnmt.errors == transformer.errors == ()


def test_inception_goes_from_one_gpu_to_the_other(tmp_path: Path) -> None:
    head = "mode,precision,layout,torch,gpu,compiled,model,batch,step_ms"
    rows = [f"infer,amp,nchw,2.4,{gpu},0,inception_v3,8,{time}" for gpu, time in (("RTX-3090", 9), ("RTX-4090", 6))]
    rows += ["train,amp,nchw,2.4,RTX-3090,0,inception_v3,8,30", "infer,amp,nhwc,2.4,RTX-4090,0,inception_v3,8,5"]
    (tmp_path / "timm.csv.gz").write_bytes(gzip.compress("\n".join((head, *rows, "")).encode()))
    (score,) = habitat_scores(tmp_path)
    assert (score.model, score.gpus, len(score.errors)) == ("Inception v3", 2, 2)
    assert (1 + score.errors[0]) * (1 + score.errors[1]) == pytest.approx(1)


def test_the_table_of_pairs() -> None:
    lines = printed(habitat_table([PairScore("ResNet-50", "training", 3, (0.1, -0.3)), PairScore("GNMT", "t", 0, ())]))
    assert "ResNet-50 training 3 2 20.0 20.0" in lines
    assert "DCGAN no published pair - - - -" in lines
    assert any(line.startswith("all the paper: mean 11.8") and line.endswith("2 20.0 20.0") for line in lines)


def test_workloads_of_the_paper_without_a_training_row() -> None:
    phases = {one.phase for one in inception_trace(1).operations}
    assert "backward" not in phases
    trained = dcgan_trace(2, width=8)
    convolutions = [one for one in trained.operations if one.name == "aten::convolution"]
    # Five layers of the generator once, five of the discriminator for what is real, what is not, and once more.
    assert len([one for one in convolutions if one.phase == "forward"]) == 5 + 3 * 5
    assert any(one.phase == "optimizer" for one in trained.operations)


def test_the_prototypes_costs_are_the_published_ones() -> None:
    sums = [round(sum(column), 2) for column in zip(*PUBLISHED_COSTS, strict=True)]
    assert sums == [16.02, 16.71]  # 4.1 % apart, as published
    assert "sum 16.02 16.71 -4.1" in printed(planning_table())
