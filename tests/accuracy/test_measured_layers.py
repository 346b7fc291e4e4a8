"""Regressions on the measured recordings of this repository, and on made ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy import own_gpu
from benchmarks.accuracy.cpu_profiles import BATCH_SIZES, FOLDER
from benchmarks.accuracy.measured_layers import (
    EVERY_SECOND,
    SMALLER,
    gpu_recordings,
    gpu_table,
    layer_table,
    predicted,
    read_steps,
    step_table,
)
from benchmarks.result_files import table_of
from lightning_predict.regression.layers import layers_of
from tests.regression.test_layers import FITTED, matrix_product, relu, step


def test_a_step_is_compared_in_the_kinds_that_were_fitted() -> None:
    other = step(matrix_product(700), relu(9000))
    products = [layer for layer in layers_of(FITTED) if layer.flops]
    found = predicted(other, products, step=1.0)
    assert found.seconds == pytest.approx(found.known, rel=1e-6)  # times of products are on one line
    assert found.share == pytest.approx((1e-6 + 1e-12 * 2 * 700**3) / found.layers)
    assert found.layers == pytest.approx(found.known + 2e-6 + 3e-12 * 8 * 9000)


def test_batch_sizes_are_split_in_halves() -> None:
    assert SMALLER == (2, 4, 8, 12)
    assert EVERY_SECOND == (2, 8, 16, 48)
    assert {*SMALLER, *EVERY_SECOND} < {*BATCH_SIZES}


@pytest.mark.slow
def test_networks_measured_on_a_cpu_are_predicted_from_each_other_and_from_their_own_batches() -> None:
    steps, whole = read_steps(FOLDER)
    assert all(own.keys() == set(BATCH_SIZES) for own in steps.values())
    for name, own in steps.items():
        for size, trace in own.items():
            calls = sum(one.host_seconds or 0.0 for one in trace.operations)
            assert calls == pytest.approx(whole[name][size], rel=0.25), (name, size)
    rows = {row[:2]: row[2:] for row in table_of(layer_table(steps, whole)).rows}
    assert float(rows["AlexNet", "AlexNet, larger batches"][0]) == 4
    assert float(rows["AlexNet", "GoogLeNet"][0]) == 8
    assert all(float(row[3]) > 85 for row in rows.values())
    errors = [float(row[4]) for row in table_of(step_table(whole)).rows]
    assert max(errors) < 15


@pytest.mark.slow
def test_each_recorded_network_of_a_gpu_is_left_out_once() -> None:
    recordings = gpu_recordings([own_gpu.FOLDER / "recordings"])
    ((gpu, own),) = recordings.items()
    assert gpu == own_gpu.GPU
    assert not any("compile" in name for name in own)
    few = {gpu: {name: own[name] for name in ("vgg16_64", "swin_tiny_128", "convnext_tiny_128")}}
    rows = [row for row in table_of(gpu_table(few)).rows if row[0] == gpu]
    assert [row[1] for row in rows] == ["vgg16_64", "swin_tiny_128", "convnext_tiny_128"]
    twice = {gpu: {"resnet50_a": own["resnet50_eager"], "resnet50_b": own["resnet50_eager"], "vgg16": own["vgg16_64"]}}
    alone = {gpu: {"resnet50_a": own["resnet50_eager"], "vgg16": own["vgg16_64"]}}
    assert table_of(gpu_table(twice)).rows[0] == table_of(gpu_table(alone)).rows[0]  # one network, left out together


def test_compiled_steps_and_recordings_without_shapes_are_left_out(tmp_path: Path) -> None:
    for name in ("one_step4", "two", "two_compile"):
        FITTED.save(str(tmp_path / f"{name}.json.gz"))
    blind = tuple(replace(one, inputs=()) for one in FITTED.operations)
    replace(FITTED, operations=blind).save(str(tmp_path / "shapeless.json.gz"))
    ((gpu, own),) = gpu_recordings([tmp_path]).items()
    assert (gpu, sorted(own)) == ("T4", ["one", "two"])
