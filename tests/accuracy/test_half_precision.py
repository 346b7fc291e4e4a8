"""Steps in float16 compared with steps under autocast."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from benchmarks.accuracy.half_precision import MODELS, norm_table, ratio_table, scores
from benchmarks.result_files import table_of

GPUS = ("V100-SXM2-16GB", "RTX-3090", "H100-SXM-80GB")
NAMES = ("AlexNet, 128", "Perceptron of 8 layers, 512", "ResNet-18 of CIFAR, 128")


def test_steps_in_float16_are_no_slower_than_under_autocast_but_for_batch_norms() -> None:
    assert len(MODELS) == 20
    for score in scores(NAMES, GPUS):
        assert max(score.without_norms.values()) <= 1.0
        assert score.has_batch_norms or max(score.ratios.values()) <= 1.0
        for ratios in score.advice.values():
            assert list(ratios.values()) == pytest.approx([1.0] * len(GPUS), abs=0.03)


def test_the_table_names_the_slowest_gpu_of_steps_with_and_without_batch_norms() -> None:
    rows = table_of(ratio_table(list(scores(NAMES[:1], ["T4"])))).rows
    assert [row[:2] for row in rows] == [("AlexNet, 128", "no"), ("all without batch norms", "no")]
    assert rows[0][2:] == rows[1][2:]


def test_measured_batch_norms_are_differences_of_two_steps(tmp_path: Path) -> None:
    """Float32: 12 - 8 = 4 ms. Float16 weights: 9 - 4 = 5 ms. Autocast: 0.5 - 0.25 = 0.25 ms an image, 3 ms of 12."""
    head = "gpu,n_gpus,precision,mode,model,batch_per_gpu,median_ms,n\n"
    steps = {"single,train,vgg16_bn": 12, "single,train,vgg16": 8, "half,train,vgg16_bn": 9, "half,train,vgg16": 4}
    rows = [f"GeForce RTX 3090,1,{name},12,{time},50\n" for name, time in steps.items()]
    (tmp_path / "torchvision_step.csv").write_text(head + "".join(rows))
    (tmp_path / "torchvision_step_2.csv").write_text(head)
    timm = "gpu,mode,precision,layout,torch,file,compiled,model,batch,img_size,step_ms\n"
    timm += "RTX-3090,train,amp,nchw,1.12,a-pt112-cu113,0,vgg16_bn,100,224,50\n"
    timm += "RTX-3090,train,amp,nchw,1.12,a-pt112-cu113,0,vgg16,100,224,25\n"
    (tmp_path / "timm.csv.gz").write_bytes(gzip.compress(timm.encode()))
    assert table_of(norm_table(tmp_path)).rows == (("RTX-3090", "vgg16", "1.25", "0.75", "-"),)
