"""The table and the Gantt chart of a plan."""

from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.planning.study import random_problem
from lightning_predict.planning.gantt_chart import chart_of, gantt_page, plan_table
from lightning_predict.planning.milp import MilpPlanner
from lightning_predict.planning.simulator import simulate
from tests.planning.example import HOUR, LARGE, MOVED, ONE_EVENT, PLAN, TWO_JOBS, Script, at, job, on


def test_chart_has_a_row_per_gpu_and_a_bar_per_segment() -> None:
    chart = chart_of(PLAN, TWO_JOBS.machines)
    assert [lane[1:] for lane in chart.lanes] == [("node 0: large", 0, 4), ("node 1: small", 4, 1)]
    assert [(bar.segment.job, bar.first_row, bar.rows) for bar in chart.bars] == [("a", 0, 4), ("b", 4, 1)]
    assert len({bar.color for bar in chart.bars}) == 2
    assert chart.rows == 5
    assert chart.end_seconds == pytest.approx(2 * HOUR)
    assert chart_of(MOVED, TWO_JOBS.machines).lanes[0].label == "node 0: small, large"


def test_gpus_that_are_not_adjacent_have_two_bars() -> None:
    jobs = tuple(
        job(name, hours={on("large", gpus): hours}, deadline=9.0)
        for name, gpus, hours in (("x", 1, 1.0), ("y", 2, 3.0), ("z", 1, 1.0))
    )
    last = job("w", hours={on("large", 2): 1.0}, deadline=9.0, release=1.0)
    first = {"x": at(0, "large", 1), "y": at(0, "large", 2), "z": at(0, "large", 1)}
    then = {"y": at(0, "large", 2), "w": at(0, "large", 2)}
    plan = simulate(replace(ONE_EVENT, jobs=(*jobs, last)), Script((first, then)))
    bars = chart_of(plan, (LARGE,)).bars
    assert [(bar.first_row, bar.rows) for bar in bars if bar.segment.job == "w"] == [(0, 1), (3, 1)]


@given(st.integers(0, 50))
@settings(max_examples=8, deadline=None)
def test_bars_do_not_overlap_and_cover_all_gpu_time(seed: int) -> None:
    problem = random_problem(nodes=1, mean_gap_seconds=60.0, seed=seed)
    problem = replace(problem, limits=replace(problem.limits, nodes=2))
    plan = simulate(problem, MilpPlanner())
    cells = [
        (bar.first_row + row, bar.segment.start_seconds, bar.segment.end_seconds)
        for bar in chart_of(plan, problem.machines).bars
        for row in range(bar.rows)
    ]
    for number, (row, start, end) in enumerate(cells):
        for other_row, other_start, other_end in cells[:number]:
            assert row != other_row or start >= other_end or end <= other_start
    ran = sum((item.end_seconds - item.start_seconds) * item.placement.configuration.num_gpus for item in plan.segments)
    assert sum((end - start) for _, start, end in cells) == pytest.approx(ran)


class Elements(HTMLParser):
    """Checks that every element is closed and that nothing is fetched, and counts the bars."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.bars = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "link", "img", "iframe"}
        assert not {name for name, _ in attrs} & {"src", "href"}
        if tag != "meta":
            self.open.append(tag)
        self.bars += tag == "rect"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_self_contained_shows_every_segment_and_escapes_names() -> None:
    parser, page = Elements(), gantt_page(MOVED, TWO_JOBS.machines)
    parser.feed(page.replace("/>", "></line>"))
    assert parser.open == []
    assert parser.bars == len(MOVED.segments) == 3
    assert f"${MOVED.total_usd:,.2f}" in page
    evil = "<b>&\"a'"
    problem = replace(ONE_EVENT, jobs=(replace(TWO_JOBS.jobs[0], name=evil),))
    page = gantt_page(simulate(problem, Script(({evil: at(0, "large", 4)},))), problem.machines)
    assert evil not in page
    assert "&lt;b&gt;" in page


def test_table_has_a_row_per_job_and_totals() -> None:
    console = Console(file=StringIO(), width=160)
    console.print(plan_table(PLAN))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "node 0: 4 GPUs of large" in text
    assert "node 1: 1 GPUs of small" in text
    (footer,) = (line for line in text.splitlines() if "│ all " in line)
    assert footer.split() == ["│", "all", "│", "│", "│", "2.00", "│", "│", "│", "8.00", "│", "0.00", "│"]
