from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.training.collectives import (
    fit_curves,
    publish_curves,
    read_rows,
    score,
    sources_of,
    write_curves,
)
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.kernels.families.collective import bundled_curves

HEADER = "gpu,op,gpus,message_elements,latency_ms\n"


def law(size: int, *, latency: float, bandwidth: float) -> float:
    """Seconds of a message: a latency and a bandwidth."""
    return latency + size / bandwidth


def synthetic() -> dict[tuple[str, str, int], dict[int, list[float]]]:
    sizes = [2**power for power in range(9, 31)]
    return {
        (gpu, "all_reduce", count): {
            size: [law(size, latency=5e-6 * math.log2(count), bandwidth=bandwidth / count)] for size in sizes
        }
        for gpu, bandwidth in (("A", 1e11), ("B", 3e11))
        for count in (2, 4, 8)
    }


def test_a_size_that_was_left_out_is_filled_in_from_the_shape_of_the_others() -> None:
    points = synthetic()
    wanted = points["A", "all_reduce", 4].pop(2**20)[0]
    sizes, curves = fit_curves(points)
    assert math.exp(curves["A", "all_reduce", 4][sizes.index(2**20)]) == pytest.approx(wanted, rel=0.1)


def test_beyond_its_largest_size_a_curve_goes_on_as_the_next_ones_do() -> None:
    points = synthetic()
    wanted = {size: points["A", "all_reduce", 8].pop(size)[0] for size in (2**29, 2**30)}
    sizes, curves = fit_curves(points)
    for size, seconds in wanted.items():
        assert math.exp(curves["A", "all_reduce", 8][sizes.index(size)]) == pytest.approx(seconds, rel=0.02)


def test_repeated_measurements_are_averaged_and_curves_never_fall() -> None:
    points = {("A", "all_reduce", 2): {512: [1e-6, 4e-6], 1024: [1e-6]}}
    sizes, curves = fit_curves(points)
    assert sizes == [512, 1024]
    np.testing.assert_allclose(np.exp(curves["A", "all_reduce", 2]), [2e-6, 2e-6])


def test_the_score_on_a_smooth_law_is_small_and_repeatable() -> None:
    first, second = score(synthetic()), score(synthetic())
    assert first.mean_error is not None
    assert first.mean_error < 0.1
    assert first.half_width_90 == second.half_width_90


def test_the_file_can_be_read_back(tmp_path: Path) -> None:
    from lightning_predict.kernels.families.collective import bundled_curves

    path = tmp_path / "curves.json"
    write_curves(synthetic(), path, sources=["made up"])
    assert json.loads(path.read_text())["sources"] == ["made up"]
    curves = bundled_curves(path)
    at = int(np.argmin(np.abs(curves.log_sizes - math.log(2**20))))
    want = law(2**20, latency=5e-6, bandwidth=0.5e11)
    assert math.exp(curves.curves["A"]["all_reduce"][2][at]) == pytest.approx(want, rel=1e-3)


def table(folder: Path, text: str) -> Path:
    path = folder / "collective.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write(text)
    return path


def test_rows_are_seconds_by_bytes(tmp_path: Path) -> None:
    path = table(tmp_path, HEADER + "A,all_reduce,2,256,0.00625\nA,all_reduce,2,256,0.00635\n")
    assert read_rows(path) == {("A", "all_reduce", 2): {512: [pytest.approx(6.25e-6), pytest.approx(6.35e-6)]}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,op\n", "line 1: gpus is not a column of this file; expected gpu, op, gpus, message_elements, latency_ms"),
        (HEADER + "A,all_reduce,two,256,0.1\n", r"line 2: gpus is 'two'; expected an integer of at least 2"),
        (
            HEADER + "A,all_reduce,2,256,0.1\nA,all_reduce,2,256,-1\n",
            r"line 3: latency_ms is -1; expected a finite number above 0",
        ),
    ],
)
def test_a_bad_table_names_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MeasurementTableError, match=message):
        read_rows(table(tmp_path, text))


def test_a_folder_without_collectives_gets_no_curves(tmp_path: Path) -> None:
    assert publish_curves(tmp_path, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_rerun_writes_the_same_bytes_and_names_the_source(tmp_path: Path) -> None:
    rows = [
        f"A,all_reduce,{count},{2**power},{0.01 * count + 2**power / 1e6}" for count in (2, 4) for power in range(21)
    ]
    lines = [HEADER.strip() + ",source", *(f"{row},aiconfigurator" for row in rows)]
    path = table(tmp_path, "\n".join(lines) + "\n")
    written = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert publish_curves(tmp_path, tmp_path / name) is not None
        written.append((tmp_path / name / "collectives.json").read_bytes())
    assert written[0] == written[1]
    assert sources_of(path) == ["ai-dynamo/aiconfigurator, (c) NVIDIA (Apache-2.0)"]
    assert json.loads(written[0])["sources"] == sources_of(path)


def test_machines_without_peer_access_are_named_in_the_file(tmp_path: Path) -> None:
    names = {"A": "L40S", "B": "A100-SXM-80GB"}
    points = {(names[gpu], operation, count): curve for (gpu, operation, count), curve in synthetic().items()}
    write_curves(points, tmp_path / "curves.json", sources=[])
    assert json.loads((tmp_path / "curves.json").read_text())["without_peer_access"] == ["L40S"]
    assert bundled_curves(tmp_path / "curves.json").staged == {"L40S"}


def test_messages_that_are_all_small_have_no_error_of_large_ones(tmp_path: Path) -> None:
    small = {key: {size: times for size, times in curve.items() if size < 10**6} for key, curve in synthetic().items()}
    assert write_curves(small, tmp_path / "curves.json", sources=[]).mean_error is None
    assert json.loads((tmp_path / "curves.json").read_text())["mean_error_held_out_1_mb"] is None


def test_too_few_sizes_are_said() -> None:
    with pytest.raises(MeasurementTableError, match=r"The 1 curves .* too few sizes to score\. Measure more"):
        score({("A", "all_reduce", 2): {512: [1e-6]}})


def test_a_source_that_is_not_known_is_named_by_its_word(tmp_path: Path) -> None:
    assert sources_of(table(tmp_path, "gpu,source\nA,mine\nB,\n")) == ["mine"]
