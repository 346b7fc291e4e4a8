from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.accuracy.hosts import HostRow, host_factors, print_report


def rows(machine: str, *ratios: float) -> list[HostRow]:
    return [HostRow(machine, ratio * 1e-4, 1e-4) for ratio in ratios]


def test_a_machine_is_judged_by_the_others() -> None:
    made = [*rows("fast", 0.4, 0.5, 0.6), *rows("usual", 1.0, 1.0, 3.0), *rows("slow", 2.0)]
    assert host_factors(made) == pytest.approx({"fast": 0.5, "slow": 2.0, "usual": 1.0})
    out = io.StringIO()
    print_report(made, Console(file=out, width=140))
    lines = [line.split() for line in out.getvalue().splitlines()]
    # Of the others: sqrt(1 * 2) = 1.41, sqrt(0.5 * 2) = 1 and sqrt(0.5 * 1) = 0.71. A machine's rows share its weight:
    # the last sixth is beyond 95 % where three are one of two machines. From 0.5 to 1.5 times are two of 0.4, 0.5 and
    # 0.6, two of 1, 1 and 3, and not 2.
    assert ["fast", "3", "0.50", "1.41", "3.00", "67", "0.17"] in lines
    assert ["usual", "3", "1.00", "1.00", "2.00", "67", "0.52"] in lines
    assert ["slow", "1", "2.00", "0.71", "3.00", "0", "0.00"] in lines
