"""Which runs of the table of timm fitted, and the probability that is scored on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import lightning_predict as lp
from benchmarks.accuracy.fit_verdicts import (
    CARDS,
    Run,
    Verdict,
    bins_table,
    cards_of,
    cards_table,
    need_of,
    outcomes,
    verdict_table,
)
from benchmarks.result_files import table_of
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import GIBIBYTE
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.memory.step_memory import MemoryNeed, memory_need


def run(batch: int, status: str, gibibytes: float, tensors: float | None = None) -> Run:
    size = gibibytes * GIBIBYTE
    tensors_bytes = size / 2 if tensors is None else tensors * GIBIBYTE
    return Run(
        model="m",
        family="f",
        image_size=224,
        batch=batch,
        status=status,
        measured_bytes=size,
        tensors_bytes=tensors_bytes,
    )


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        # By the line, a batch of 32 needs 20 + 16 x 1 = 36 GiB: trials may have filled the GPU of 40 GB.
        ([("wall", 39, 30)], []),
        # A batch of 64 needs 68 GiB: the tensors alone exceed the GPU, or cached blocks filled the GPU.
        ([("ok", 36, 30), ("wall", 39, 60), ("short", 3, 120)], [(32, True), (64, False), (128, False)]),
        ([("ok", 36, 18), ("wall", 39, 36), ("short", 3, 72)], [(32, True), (64, None)]),
        ([("short", 3, 30), ("wall", 39, 60)], [(64, False)]),  # a run that broke off early is left out
        ([("short", 3, 30), ("after_wall", 5, 60)], []),
    ],
)
def test_a_run_did_not_fit_if_its_tensors_alone_exceed_the_gpu(
    ends: list[tuple[str, float, float]], expected: list[tuple[int, bool | None]]
) -> None:
    runs = [run(8, "ok", 12), run(16, "ok", 20), *(run(32 * 2**i, *end) for i, end in enumerate(ends))]
    found = [(one.batch, fitted) for one, fitted, _ in outcomes(runs)]
    assert found == [(8, True), (16, True), *expected]


def test_one_figure_has_no_line() -> None:
    assert list(outcomes([run(8, "ok", 12), run(128, "wall", 39)])) == []


def test_a_larger_batch_is_less_likely_to_fit() -> None:
    trace = lp.Trace.load("examples/gpt2.json.gz")
    needs = [need_of(trace, batch) for batch in (16, 30, 200)]
    chances = [None if need is None else need(None).fit_probability for need in needs]
    assert chances[0] == pytest.approx(1, abs=0.01)
    assert chances == sorted(chances, key=lambda one: -(one or 0))
    assert chances[2] == pytest.approx(0, abs=0.01)


def test_verdicts_count_by_outcome_and_by_probability() -> None:
    good, bad = (Verdict(run=run(8, "ok", 30), fitted=fitted, need_share=0.9, chance=0.99) for fitted in (True, False))
    unknown = replace(good, fitted=None, chance=0.75, need_share=1.1)
    scored = [good, good, good, bad, replace(bad, chance=0.2, need_share=1.5), unknown]
    verdicts = {row[0]: row[1:] for row in table_of(verdict_table(scored)).rows}
    assert verdicts["fitted"] == ("3", "3", "3")
    assert verdicts["did not fit"] == ("2", "1", "1")
    assert verdicts["did not fit, within 25 % of the GPU"] == ("1", "0", "1")
    assert verdicts["filled the GPU, outcome unknown"] == ("1", "", "0")
    assert verdicts["all known"] == ("5", "4", "4")
    bins = {row[0]: row[1:] for row in table_of(bins_table(scored)).rows}
    assert bins == {"20-30 %": ("1", "20", "0", "0"), "70-80 %": ("0", "", "", "1"), "90-100 %": ("4", "99", "75", "0")}


def test_a_measured_run_tells_about_cards_beyond_its_process_and_below_its_tensors() -> None:
    layout = Layout(gpu("A100-SXM-40GB"))

    def need(size: float | None) -> MemoryNeed:
        return memory_need(layout, 9e9, context=Interval(1e9, 1e9, 1e9), reported_bytes=size)  # 10 GB of process

    cards = list(cards_of("source", need, process_bytes=10.1e9, tensors_bytes=9.1e9))
    known = {share: one.fits for share, one in zip(CARDS, cards, strict=True)}
    assert [known[share] for share in (0.8, 0.9, 0.95, 1.0, 1.05, 1.3)] == [False, False, None, None, True, True]
    chances = [one.chance for one in cards]
    assert chances == sorted(chances)
    assert chances[CARDS.index(1.0)] == pytest.approx(0.5)
    assert sum(int(row[2]) for row in table_of(cards_table(cards)).rows) == len(CARDS)
