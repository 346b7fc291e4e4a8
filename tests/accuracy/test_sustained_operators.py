"""Scores of operators at burst and sustained rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accuracy.sustained import power_table, rates_table, read_operators, sustained_share
from benchmarks.result_files import table_of

MATMUL = 'B200-SXM-180GB,matmul,"b=1, m={m}, k=8192, n=8192, layout={layout}, accumulate=False, out_dtype=bf16",1000\n'
ATTENTION = (
    'B200-SXM-180GB,sdp_fwd,"batch=1, seq_len={seq}, head_num=64, kv_head_num=8, qk_head_dim=128, v_head_dim=128, '
    'qkv_contiguous=True",2000\n'
)
GROUPED = 'B200-SXM-180GB,group_matmul,"ng=160, M=154, N=3072, K=5120, dtype=bf16, stage=fwd",449\n'


def test_rows_are_sustained_by_the_duration_of_their_load(tmp_path: Path) -> None:
    rows = [MATMUL.format(m=8192, layout="TN"), MATMUL.format(m=1024, layout="NT"), MATMUL.format(m=64, layout="NN")]
    rows += [ATTENTION.format(seq=4096), ATTENTION.format(seq=32768), GROUPED]
    path = tmp_path / "simumax_operators.csv"
    path.write_text("gpu,operation,shape,tflops\n" + "".join(rows))
    long, short, apart, passes, grouped = read_operators(path)  # the third takes less than 50 us
    assert long.measured == pytest.approx(2 * 8192**3 / 1e15)  # 1.1 ms, so a loop of 110 ms
    assert (long.kind, short.kind) == (
        "products, forward, loops over 50 ms",
        "products, weight gradient, loops under 50 ms",
    )
    assert apart.measured == pytest.approx(2 * 64 * 4096**2 * 256 / 2e15)
    assert long.predicted is not None
    assert apart.predicted is not None
    assert passes.predicted is not None
    assert long.predicted.middle > 1.3 * long.burst  # 1,103 TFLOP/s instead of 1,567
    assert apart.predicted.middle == apart.burst  # waits for the previous pass, and takes 0.3 ms
    assert passes.predicted.middle == pytest.approx(passes.burst / 0.853)  # takes 18 ms
    assert (apart.kind, passes.kind, grouped.kind) == (
        "attention, passes under 5 ms",
        "attention, passes over 5 ms",
        "grouped products, forward",
    )
    assert grouped.count == 160
    assert grouped.shape.dims[1:] == (154, 3072, 5120)
    cells = {row[:2]: row[2] for row in table_of(rates_table((long, short, apart, passes, grouped))).rows}
    assert cells["all", "attention"] == "2"
    assert cells["all", "all"] == "5"


def test_the_first_5_ms_of_a_loop_are_a_burst() -> None:
    """At 0.1 ms, 50 calls are a burst: 25 of warm-up, and 25 of the 75 timed ones. Passes of attention are alone."""
    assert sustained_share("products", 1e-4, 1e-4) == pytest.approx(50 / 75)
    assert sustained_share("products", 4e-5, 4e-5) == 0.0
    assert sustained_share("grouped products", 1e-3, 1e-3) == 1.0
    assert (sustained_share("attention", 4e-3, 4e-3), sustained_share("attention", 6e-3, 6e-3)) == (0.0, 1.0)


def test_the_power_limit_lowers_the_clock_of_matrix_units_only() -> None:
    """None of 918 rows of memory-bound work on the H200 was limited; 29 of 312 rows of products were."""
    rows = {kind: list(map(int, cells)) for kind, *cells in table_of(power_table()).rows}
    number, limited, lowest_clock, highest_power = rows["memory-bound work"]
    assert number > 900
    assert limited == 0
    assert lowest_clock == 1980  # the highest clock of the board
    assert highest_power < 0.7 * 700
    for kind in ("products", "attention", "convolutions"):
        assert rows[kind][1] > 0
        assert rows[kind][2] < 1980
