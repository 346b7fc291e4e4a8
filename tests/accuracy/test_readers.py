"""Published tables: who measured them, which need data, and when a result is refused."""

import pytest

from benchmarks.accuracy.readers.own_gpu import why_refused
from benchmarks.accuracy.tables import READERS
from benchmarks.result_files import Result, ResultTable
from benchmarks.runs import RUNS, SOURCES

WITHOUT_DATA = {name for name in READERS if not RUNS[name].needs}


def test_every_table_names_who_measured_and_pages_need_no_data() -> None:
    assert set(READERS) - {"gains"} <= set(SOURCES)
    assert set(READERS) <= set(RUNS)
    assert {"tutorial", "finetuning", "dgxc", "ibm", "kempner", "own-gpu"} <= WITHOUT_DATA


def result_of(net: str, each: str) -> Result:
    rows = (("vgg16_64", "yes", "22.6", "+18.3", "34.8"), ("all", "", "22.6", net, each))
    names = ("recording", "constants read off", "measured ms", "net error %", "item-by-item error %")
    table = ResultTable(
        title="own-gpu: GPU time of recordings, operation by operation", columns=names, names=2, rows=rows
    )
    return Result(name="own-gpu", command="", date="2026-11-29", commit="0123456", split="held out", tables=(table,))


@pytest.mark.parametrize(
    ("net", "each", "is_refused"),
    [("+0.3", "30.0", True), ("+0.3", "28.0", False), ("+6.0", "30.0", True), ("-0.3", "29.05", False)],
    ids=["net better, items worse", "both better", "both worse", "items within noise"],
)
def test_result_with_worse_items_is_refused_whatever_its_net_error(net: str, each: str, *, is_refused: bool) -> None:
    assert (why_refused(result_of("+5.0", "29.0"), result_of(net, each)) is not None) == is_refused
