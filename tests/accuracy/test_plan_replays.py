"""Plans carried out with published times: teams from rows, deadlines that bind, and the counts."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from benchmarks.accuracy import plan_replays
from benchmarks.accuracy.plan_replays import (
    PROBABILITY,
    measured_over_predicted,
    print_report,
    replays,
    replays_table,
    teams,
)
from benchmarks.accuracy.step_calibration import StepCase
from lightning_predict.base.interval import Interval
from lightning_predict.planning.objective import late_factor

GPUS = {"A100-SXM-40GB": 1.0, "RTX-3090": 2.0, "V100-SXM2-16GB": 3.0}
"""Seconds of a step of the first model."""


def case(gpu: str, model: int, *, off: float = 1.0, table: str = "benchmarks", samples: int | None = 8) -> StepCase:
    seconds = (1 + model) * GPUS[gpu]
    return StepCase(
        table=table,
        source="1.13",
        gpu=gpu,
        model=f"model{model}",
        measured_seconds=seconds * off,
        predicted=Interval(seconds / 1.5, seconds, seconds * 1.5),
        shares={"convolutions": 1.0},
        samples=samples,
    )


CASES = tuple(case(gpu, model, off=1 + 0.1 * model) for gpu in GPUS for model in range(3))


def test_a_team_has_the_times_of_rows_by_sample() -> None:
    (first, second) = teams(CASES, 2)
    assert (first.binds, second.binds) == (True, False)
    for job in first.problem.jobs:
        model = int(job.name[-1])
        by_gpu = {place.machine: seconds for place, seconds in job.seconds.items()}
        # One step of 8 samples takes three times as long on a V100 as on an A100, and so does the run.
        assert by_gpu["V100-SXM2-16GB"] == pytest.approx(3 * by_gpu["A100-SXM-40GB"])
        for place, seconds in first.measured_seconds[job.name].items():
            assert seconds == pytest.approx((1 + 0.1 * model) * job.seconds[place])
        # It binds: the job keeps it with 90 % on one of its GPUs exactly.
        kept = [seconds * late_factor(job.high_factor, PROBABILITY) for seconds in job.seconds.values()]
        assert any(job.deadline_seconds - job.release_seconds == pytest.approx(end) for end in kept)


def test_too_few_gpus_give_no_team() -> None:
    assert list(teams([one for one in CASES if one.gpu != "RTX-3090"], 2)) == []
    assert list(teams([replace(one, samples=None) for one in CASES], 2)) == []


def test_the_report_counts_lost_work_and_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_replays, "JOBS", 2)
    assert measured_over_predicted(CASES)[1] == pytest.approx(1.1)
    found = list(replays(CASES, 1))
    assert next(one.times for one in found) == "as measured"
    assert len(found) == 4
    for one in found:
        assert one.replay.lost_seconds == 0.0
        # Nothing here is off by more than 20 %, and deadlines leave room for 1.5 ** (1.28 / 1.64) = 1.37 times.
        assert one.replay.kept_deadlines == 1.0
    assert replays_table(found).row_count == 4


def test_the_report_says_how_rows_were_off() -> None:
    others = [case(gpu, model, table="others", samples=None, off=1.2) for gpu in GPUS for model in range(2)]
    text = StringIO()
    print_report([*CASES, *others], Console(file=text, width=180), number=0)
    assert "9 rows of 3 GPUs, left out of the spread of 6 others" in text.getvalue()
    assert "50 %: 1.10" in text.getvalue()
