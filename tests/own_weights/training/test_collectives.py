import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.training.collectives import fit_curves, publish_curves, score, sources_of, write_curves
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


def test_missing_size_is_filled_in_and_a_curve_continues_as_the_next_ones() -> None:
    points = synthetic()
    inner = points["A", "all_reduce", 4].pop(2**20)[0]
    last = {size: points["A", "all_reduce", 8].pop(size)[0] for size in (2**29, 2**30)}
    sizes, curves = fit_curves(points)
    assert math.exp(curves["A", "all_reduce", 4][sizes.index(2**20)]) == pytest.approx(inner, rel=0.1)
    for size, seconds in last.items():
        assert math.exp(curves["A", "all_reduce", 8][sizes.index(size)]) == pytest.approx(seconds, rel=0.02)


def test_repeated_measurements_are_averaged_and_their_score_is_repeatable() -> None:
    points = {("A", "all_reduce", 2): {512: [1e-6, 4e-6], 1024: [1e-6]}}
    sizes, curves = fit_curves(points)
    assert sizes == [512, 1024]
    np.testing.assert_allclose(np.exp(curves["A", "all_reduce", 2]), [2e-6, 2e-6])
    first, second = score(synthetic()), score(synthetic())
    assert first.mean_error is not None
    assert first.mean_error < 0.1
    assert first.half_width_90 == second.half_width_90


def test_the_file_can_be_read_back(tmp_path: Path) -> None:

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
