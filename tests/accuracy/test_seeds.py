"""The report of the papers' experiments on small tables."""

from __future__ import annotations

import gzip
import io
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.accuracy.regressions import layer_scores, layers_table
from benchmarks.accuracy.seeds import (
    PUBLISHED_COSTS,
    LinScore,
    PairScore,
    dcgan_trace,
    habitat_scores,
    habitat_table,
    inception_trace,
    lin_table,
    print_report,
    prototype_table,
)
from benchmarks.accuracy.workloads.classifiers import alexnet, googlenet
from benchmarks.planning.prototype import MACHINES, played_prototype, prototype_problem, slot_costs
from lightning_predict.base.errors import MeasurementTableError


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
    # Times that are too long in one direction are too short in the other.
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
    # Five layers of the generator once, five of the discriminator for real data, for generated data, and once more.
    assert len([one for one in convolutions if one.phase == "forward"]) == 5 + 3 * 5
    assert any(one.phase == "optimizer" for one in trained.operations)


def test_the_prototype_is_played_and_stands_beside_the_papers_costs() -> None:
    sums = [round(sum(column), 2) for column in zip(*PUBLISHED_COSTS, strict=True)]
    assert sums == [16.02, 16.71]  # 4.1 % apart, as published
    lines = printed(prototype_table(seeds=(2,)))
    assert any(line.startswith("as published 11 16.02 16.71 -4.1") for line in lines)
    problem = prototype_problem(2)
    assert [job.release_seconds for job in problem.jobs] == [0, 300, 600, 900, 1200, 1500]
    assert {machine.name for machine in problem.machines} == set(MACHINES)
    played = played_prototype(2)
    for plan in (played.predicted, played.real):
        assert sum(slot_costs(plan)) == pytest.approx(plan.machine_usd)
        assert len({(rental.node) for rental in plan.rentals}) <= 2
    # Each real time is within 10 % of the predicted one, and so is the cost but for other decisions.
    assert abs(played.deviation) < 0.2


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementTableError, match=r"holds none of training_throughput.csv, .*gavel.csv"):
        print_report(tmp_path, Console(file=io.StringIO()))


def test_lins_steps_stand_beside_the_papers_errors() -> None:
    peers = {"Lin et al.": 0.05, "Habitat": 0.1}
    scores = [LinScore("V100", 16, 0.1, 0.11, 0.1, peers), LinScore("V100", 32, 0.2, 0.18, 0.17, peers)]
    lines = printed(lin_table(scores))
    assert "V100 16 100.0 110.0 100.0 +10.0 5.0 10.0" in lines
    assert "mean 10.0 5.0 10.0" in lines


def test_layers_of_one_network_predict_another_as_a_whole() -> None:
    networks = {name: partial(make, divisor=8) for name, make in (("AlexNet", alexnet), ("GoogLeNet", googlenet))}
    scores = layer_scores(("T4",), batches=(2, 4, 8), fitted=(2, 4), networks=networks)
    assert [(score.fitted, len(score.errors)) for score in scores] == [("AlexNet", 1), ("GoogLeNet", 3)]
    assert all(-1 < error < 1 for score in scores for error in score.errors)
    lines = printed(layers_table(scores))
    assert any(line.startswith("AlexNet all 1 ") and line.endswith(" 4.75") for line in lines)
    assert any(line.startswith("GoogLeNet all 3 ") and line.endswith(" 9.29") for line in lines)
