"""Tables and their footnotes: golden texts, widths, colours, and the condition of each note."""

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lightning_predict.base.interval import Interval
from lightning_predict.base.note import Note, details
from lightning_predict.cost.prediction import Prediction
from lightning_predict.hardware.layouts import Layout, layout_of
from lightning_predict.hardware.user_gpus import read_gpus
from lightning_predict.memory.step_memory import memory_need
from lightning_predict.reports.format import share
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import rank
from lightning_predict.reports.table import grid, markdown_table, plain_table, print_table
from lightning_predict.reports.table_notes import NOTES
from lightning_predict.reports.table_rows import folded_gpus, is_bound_by_links
from lightning_predict.testing import example_machine, with_values
from lightning_predict.timeline.verdict import Verdict
from tests.known import known
from tests.reports.example import AT_MOST, BARE, FULL, GIBIBYTE, H100, K80, MINIMAL, T4, TEN


def of(*predictions: Prediction) -> Predictions:
    return Predictions(predictions)


def cells(predictions: Predictions) -> list[dict[str, str]]:
    """The rows of a table by the titles of its columns."""
    shown = grid(predictions)
    return [dict(zip((column.title for column in shown.columns), row, strict=True)) for row in shown.rows]


def printed(predictions: Predictions, width: int, *, verbose: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        print_table(predictions, console, verbose=verbose)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").splitlines())


DEVICE = Verdict(bound_by="device", idle_share=0.0, gain=0.5, critical_path={})
L4 = layout_of("L4")
ALONE = with_values(MINIMAL, iteration=Interval(0.4, 0.4, 0.4))
FOUR = with_values(MINIMAL, layout="4xT4", iteration=Interval(0.5, 0.5, 0.5), added_seconds=0.1)
EIGHT = with_values(MINIMAL, layout="8xT4", iteration=Interval(1.0, 1.0, 1.0), added_seconds=0.6)
INTERVAL = "Interval (90 %): nine in ten measured times should lie in it."
SEARCH = "`lightning-predict trace memory` shows what fills the memory and what would help"
DATED = (with_values(T4, priced_on="2026-05-25"), with_values(H100, priced_on="2026-03"))
SEEN = with_values(MINIMAL, layout="T4", coverage={"mlp": 1.0}, extrapolated_share=0.4)
PARTLY = with_values(MINIMAL, layout="L4", coverage={"mlp": 0.6, "proxy": 0.4}, extrapolated_share=0.6)
UNSEEN = [with_values(MINIMAL, gpu=name, coverage={"mlp": 1.0}, extrapolated_share=1.0) for name in ("A10G", "GH200")]
INDIRECT = with_values(H100, coverage={"mlp": 0.7, "proxy": 0.2, "bytes": 0.1})
ENDLESS = with_values(MINIMAL, at_most=True, cycle_seconds=0.025, usd_per_hour=3.6)


def needing(gibibytes: float, most: float = 1.0) -> Prediction:
    return replace(MINIMAL, memory=memory_need(L4, gibibytes * GIBIBYTE, relative=Interval(1 / most, 1.0, most)))


@pytest.mark.parametrize(
    ("condition", "predictions", "notes"),
    [
        # The loader takes 20 ms: less than a step of 48 ms on the T4, more than 6 ms on the H100.
        ("bound by links", of(ALONE), []),
        (
            "bound by links",
            of(ALONE, FOUR, EIGHT),
            ["Several GPUs: share of a step spent waiting for other GPUs: 20 % (4xT4), 60 % (8xT4)."],
        ),
        ("in use", of(T4), []),
        (
            "in use",
            Predictions((with_values(T4, unmeasured_seconds=0.0380),), used_gpu="T4"),
            ["T4: a step takes 47.5 ms (measured). Without that measurement, the prediction is 38.0 ms (-20 %)."],
        ),
        ("uncertain bottleneck", of(T4), []),
        (
            "uncertain bottleneck",
            of(with_values(T4, verdict=replace(DEVICE, is_doubtful=True))),
            [
                "?: the CPU speed is assumed (5.00 ms to launch the step), "
                "so either host or device may be the bottleneck."
            ],
        ),
        ("parts of total", of(with_values(T4, checkpoint_seconds=120.0)), [INTERVAL]),
        (
            "parts of total",
            of(with_values(T4, checkpoint_seconds=120.0, checkpoint_is_estimated=True)),
            [INTERVAL, "Total: checkpoint time is estimated from the size of the files."],
        ),
        ("epoch", of(T4, MINIMAL), []),
        ("epoch", of(with_values(MINIMAL, epoch_seconds=90.0)), ["Time of a training epoch: L4 1 min 30 s."]),
        ("early end", of(with_values(T4, at_most=True)), ["≤: the run may end earlier."]),
        ("early end", of(ENDLESS), []),
        # From 2026-05-25 to 2026-11-21 are 180 days, to the 22nd 181.
        ("old prices", replace(of(DATED[0]), made_on="2026-11-21"), []),
        ("old prices", of(DATED[0]), []),  # without a day of the prediction
        (
            "old prices",
            replace(of(*DATED), made_on="2026-11-22"),
            ["Prices older than 180 days: T4 (2026-05-25), H100-SXM-80GB (2026-03). Check them before you rent."],
        ),
        ("indirect", of(T4), []),  # 8 %
        (
            "indirect",
            of(T4, INDIRECT),
            [
                "8 to 30 % of the GPU time has no direct measurement (surrogate operations, formulas); the interval "
                "covers it."
            ],
        ),
        ("indirect", of(with_values(INDIRECT, memory_fit="exceeds")), []),  # not for rent
        # An L4 has 21.4 GiB for tensors, of which 24 lack 2.6. If the middle just fits, the chance is told.
        ("too large", of(needing(24)), [f"Too large: L4 lacks 2.57 GiB. {SEARCH}."]),
        (
            "too large",
            of(needing(21.5, 1.2), replace(needing(24), layout=Layout(L4.gpu, 8))),
            [
                f"Unlikely to fit / Too large: L4 is 48 % likely to fit, 8xL4 lacks 2.57 GiB. {SEARCH}. "
                "`lightning-predict parallel` finds ways to split the model among GPUs."
            ],
        ),
        # An L4 has 21.4 GiB: 24 GiB would fill it, of which the allocator releases 8, and runs need 4.0 % more
        # than predicted; 16 GiB do not fill it.
        (
            "filled",
            of(replace(MINIMAL, memory=memory_need(L4, 24 * GIBIBYTE, releasable_bytes=8 * GIBIBYTE))),
            ["Full, but fits: torch's allocator frees what it caches when the GPU is full. Needed: L4 16.6 GiB."],
        ),
        ("filled", of(replace(MINIMAL, memory=memory_need(L4, 16 * GIBIBYTE))), []),
        ("extrapolated", of(SEEN), []),
        (
            "extrapolated",
            of(SEEN, PARTLY),
            ["† 60 % of this GPU's time is extrapolated from other GPUs (no measurements on the L4)."],
        ),
        (
            "extrapolated",
            of(SEEN, PARTLY, *UNSEEN),
            ["† 60 to 100 % of these GPUs' time is extrapolated from other GPUs (no measurements on them)."],
        ),
        (
            "prices",
            FULL,
            [
                "Prices: H100-SXM-80GB $2.99/h, Lambda gpu_1x_h100_sxm5 (2026-11-01); "
                "T4 $0.35/h, Google n1-standard-4 (2026-10-01)."
            ],
        ),
        (
            "prices",  # one price of several GPUs stands once
            of(*(with_values(T4, gpu=name, offer="user (2026-11-21)", usd_per_hour=1.0) for name in ("T4", "L4"))),
            ["Prices: T4, L4 $1.00/h, user (2026-11-21)."],
        ),
        ("prices", of(with_values(T4, offer=None)), ["Prices: T4 $0.35/h, source not stated."]),
        (
            "details",  # a note of all GPUs names none
            of(*(with_values(MINIMAL, gpu=name, notes=details(("same", f"only {name}"))) for name in ("L4", "A10"))),
            ["same", "L4: only L4", "A10: only A10"],
        ),
        (
            "methods",  # a method without an explanation is still named
            of(with_values(MINIMAL, coverage={"new": 0.75, "mlp": 0.25})),
            ["Covered by: share of the GPU time by method (mlp: a network trained on the operation and dtype; new)."],
        ),
    ],
)
def test_note_states_its_condition(condition: str, predictions: Predictions, notes: list[str]) -> None:
    assert list(NOTES[condition](predictions)) == notes


@pytest.mark.parametrize("cache", [0, 1, 4])
@pytest.mark.parametrize("gibibytes", [16.0, 18.5, 19.5, 20.0, 20.4, 20.6, 21.0, 24.0])
def test_column_word_note_json_and_recommendation_agree(cache: int, gibibytes: float) -> None:
    row = replace(MINIMAL, memory=memory_need(L4, (gibibytes + cache) * GIBIBYTE, releasable_bytes=cache * GIBIBYTE))
    chance, text = known(row.fit_probability), plain_table(of(row))
    # The amount without the freed cache is within 1 % of the 21.4 GiB, or it exceeds them.
    below = "unlikely" if gibibytes < 21.5 else "too large"
    word = "" if chance >= 0.9 else "tight: " if chance >= 0.5 else f"{below}: "
    assert re.search(rf"  {word}[\d.]+ of 21.4 +{share(chance)}", text)
    notes = [note in text for note in ("Too large: L4 lacks", "Unlikely to fit: L4 is", "Tight memory: L4")]
    assert notes == [chance < 0.5 and gibibytes > 21.5, chance < 0.5 and gibibytes < 21.5, 0.5 <= chance < 0.9]
    assert ("GiB of cache freed)" in text) == (cache > 0 and chance < 0.9)
    told = re.search(r"too large: ([\d.]+) of ([\d.]+).* lacks ([\d.]+) GiB", text, re.DOTALL)
    if told is not None:
        held, usable, lack = map(float, told.groups())
        assert held - cache - usable == pytest.approx(lack, abs=0.1)
    assert row.as_dict()["fits"] == (chance >= 0.5) == (rank(of(row)).fastest is not None)


def test_loader_is_the_bottleneck_and_the_heading_comes_first() -> None:
    rows = cells(of(with_values(T4, loader_seconds=0.020), with_values(H100, loader_seconds=0.020)))
    assert [row["bound by"] for row in rows] == ["device", "loader"]
    assert cells(of(with_values(T4, verdict=replace(DEVICE, is_doubtful=True))))[0]["bound by"] == "device?"
    assert [is_bound_by_links(row) for row in (ALONE, FOUR, EIGHT)] == [False, False, True]
    headed = replace(FULL, heading="Rest of this run: 240,000 steps × batch 64")  # noqa: RUF001
    assert plain_table(headed).splitlines()[:2] == [headed.heading, ""]
    assert markdown_table(headed).startswith("**Rest of this run: 240,000 steps × batch 64**\n\n|")  # noqa: RUF001
    assert printed(headed, 120).splitlines()[0] == headed.heading


def test_gpus_limited_by_loader_share_the_row_of_the_cheapest() -> None:
    # 240,000 steps of 20 ms for the loader: 4,800 s = 1 h 20 min on each; $2.99, $1.99, $4.50 and no price an hour.
    waiting = with_values(H100, loader_seconds=0.020, total=Interval(4_800.0, 4_800.0, 4_800.0))
    cheaper = with_values(waiting, layout="A100-SXM-80GB", usd_per_hour=1.99, cost_usd=2.65)
    unpriced = with_values(waiting, layout="B200-SXM-180GB", usd_per_hour=None, cost_usd=None, offer=None)
    unseen = {"coverage": {"mlp": 1.0}, "extrapolated_share": 1.0}
    dearest = with_values(waiting, layout="H200-SXM-141GB", usd_per_hour=4.5, cost_usd=6.0, **unseen)
    shown = of(T4, waiting, cheaper, dearest, unpriced)
    text, full = plain_table(shown), plain_table(shown, verbose=True)
    assert [row.split()[0] for row in text.splitlines()[2:4]] == ["T4", "A100-SXM-80GB"]
    assert (
        "H100-SXM-80GB, H200-SXM-141GB would not be faster than the cheaper A100-SXM-80GB: the loader limits this step."
        in " ".join(text.split())
    )
    assert any(row.startswith("B200-SXM-180GB ") for row in text.splitlines())  # it may cost less
    assert "would not be faster" not in full
    assert ("†" in text, "†" in full) == (False, True)  # no mark of a row that is not shown
    assert full.count("loader  ") >= 3
    # The machine in use keeps its row, and nothing is folded that memory tells apart or the device bounds.
    in_use = Predictions((T4, waiting, cheaper), used_gpu="H100-SXM-80GB")
    tight, alike = of(waiting, with_values(cheaper, memory_fit="tight")), of(T4, with_values(T4, layout="L4"))
    assert [list(folded_gpus(predictions)) for predictions in (in_use, tight, alike)] == [[], [], []]


def test_unknown_run_length_shows_1000_steps_and_too_small_gpus_come_last() -> None:
    # A step of 20 ms and its wait of 5 ms, 1,000 times; a step is 18 to 23 ms, with its wait 23 to 28.
    (row,) = cells(of(ENDLESS))
    assert (row["step"], row["1,000 steps"], row["(90 %)"]) == ("20.0 ms", "25.0 s", "± 12 %")
    assert row["cost"] == "$0.0250"  # 25 s at $0.001 a second
    assert "total" in cells(of(T4))[0]
    shown = [row["memory (GiB)"] for row in cells(of(T4, K80, with_values(T4, gpu="Narrow", memory_fit="tight")))]
    # 7.81 + 6.29 GiB; 12.5 - 2.0 GiB.
    assert shown == ["7.81 of 14.1", "tight: 7.81 of 14.1", "too large: 12.5 of 10.5"]


def test_machine_in_use_is_the_first_row() -> None:
    machine = example_machine("CPU", 0.412, total=Interval(24_000.0, 24_060.0, 24_100.0), at_most=True)
    rows = cells(Predictions((H100, with_values(T4, at_most=True)), machine=machine, is_running=True))
    assert [row["GPU"] for row in rows] == ["this CPU", "H100-SXM-80GB", "T4"]
    assert (rows[0]["step"], rows[0]["rest of the run"], rows[0]["(90 %)"]) == ("412 ms", "≤ 6 h 41 min", "± 1 %")
    assert rows[0]["cost"] == rows[0]["memory (GiB)"] == ""  # the price of an own computer is unknown
    assert rows[2]["rest of the run"].startswith("≤ ")
    asked = cells(Predictions((H100, T4), used_gpu="T4", is_running=True))
    assert [row["GPU"] for row in asked] == ["this T4", "H100-SXM-80GB"]
    assert asked[0]["(90 %)"] == "± 8 %"
    predicted = cells(Predictions((MINIMAL,), used_gpu="L4"))  # without a measured step
    assert (predicted[0]["GPU"], predicted[0]["step"], predicted[0]["(90 %)"]) == ("L4 (recorded)", "20.0 ms", "± 15 %")


def test_brief_table_leaves_details_to_verbose_and_says_the_age_of_prices() -> None:
    noted = replace(FULL, notes=("The weights could not be fetched.", Note("cudnn.benchmark is off.", is_detail=True)))
    brief, full = plain_table(noted), plain_table(noted, verbose=True)
    for words in ("covered by", "Prices: ", "cudnn.benchmark is off.", "Interval (90 %): "):
        assert words not in brief
        assert words in full
    assert "The weights could not be fetched." in brief
    for words in ("The weights could not be fetched.", "No kernel model knows"):  # the second is the fourth note
        assert words in full
    # The interval, the GPU that networks never saw, what bounds the H100, and a detail.
    assert "verbose adds the methods, the sources of prices and" in brief
    assert "verbose adds" not in full
    assert "the sources of prices (2026-03 to 2026-05-25)" in plain_table(of(*DATED))
    assert "the sources of prices (2026-03)" in plain_table(of(DATED[1]))
    assert "the sources of prices" in plain_table(FULL)
    assert "the sources of prices (" not in plain_table(FULL)  # prices that the user gave have no day


EXAMPLES = {"full": FULL, "bare": BARE, "at_most": AT_MOST, "ten": TEN}


def sections(texts: Mapping[str, str]) -> str:
    """Put texts under their names in one golden file: one test and one file for a kind of table."""
    return "\n\n".join(f"=== {name}\n{text}" for name, text in texts.items())


def test_tables_equal_their_golden_texts(golden: Callable[[str, str], None]) -> None:
    golden("plain.txt", sections({name: plain_table(example) for name, example in EXAMPLES.items()}))
    golden("verbose.txt", sections({name: plain_table(example, verbose=True) for name, example in EXAMPLES.items()}))
    golden("markdown.txt", sections({name: markdown_table(example) for name, example in EXAMPLES.items()}))
    golden("rich.txt", sections({f"{width} columns": printed(TEN, width) for width in (80, 100, 120)}))


shares = st.fixed_dictionaries(
    {}, optional={method: st.floats(0, 1) for method in ("mlp", "proxy", "bytes", "wave", "roofline", "measured")}
)
seconds = st.floats(min_value=1e-6, max_value=1e6)
totals = st.floats(min_value=0, max_value=1e9)
predictions_of_any_size = st.builds(
    with_values,
    st.sampled_from([MINIMAL, T4, H100, K80]),
    gpu=st.from_regex(r"[A-Za-z0-9.-]{1,30}", fullmatch=True),
    iteration=st.builds(Interval, seconds, seconds, seconds),
    total=st.none() | st.builds(Interval, totals, totals, totals),
    cost_usd=st.none() | st.floats(min_value=1e-4, max_value=1e7),
    at_most=st.booleans(),
    coverage=shares,
    base_share=st.floats(0, 1),
)


@given(st.lists(predictions_of_any_size, min_size=1, max_size=5, unique_by=lambda row: row.gpu))
def test_plain_table_is_aligned_and_at_most_120_wide(predictions: list[Prediction]) -> None:
    lines = plain_table(Predictions(tuple(predictions), notes=("word " * 100,))).splitlines()
    assert max(map(len, lines)) <= 120
    rule = next(number for number, line in enumerate(lines) if line.startswith("---"))
    # Where the rule has a gap between two columns, no line of the table has a character.
    gaps = [place for place, character in enumerate(lines[rule]) if character == " "]
    table = lines[: lines.index("")]
    assert all(line[place : place + 1] in ("", " ") for line in table for place in gaps)


@given(st.lists(predictions_of_any_size, min_size=1, max_size=3, unique_by=lambda row: row.gpu))
def test_markdown_rows_have_equal_numbers_of_cells(predictions: list[Prediction]) -> None:
    table = markdown_table(Predictions(tuple(predictions))).split("\n\n")[0].splitlines()
    assert len(table) == 2 + len(predictions)
    assert len({line.count(" |") for line in table}) == 1


def listed(text: str, label: str) -> set[str]:
    """Return the names that a note lists after its label, whichever others a table has."""
    names = re.search(rf"{re.escape(label)}: (.*?)\.( |$)", " ".join(text.split()))
    assert names is not None, text
    return set(names[1].split(", "))


def test_table_in_use_and_of_a_run_that_may_end_earlier_says_so() -> None:
    assert plain_table(FULL).splitlines()[2].startswith("T4 (recorded)  47.5 ms")
    assert plain_table(replace(FULL, is_running=True)).splitlines()[2].startswith("this T4 ")
    text = plain_table(AT_MOST)
    assert "≤ 3 h 12 min" in text
    assert "≤ $1.12" in text
    assert "≤" not in plain_table(FULL)


def test_mostly_extrapolated_gpu_is_marked(tmp_path: Path) -> None:
    rows = {row["GPU"].split()[0]: row["GPU"] for row in cells(of(SEEN, PARTLY, *UNSEEN))}
    assert rows == {"T4": "T4", "L4": "L4 †", "A10G": "A10G †", "GH200": "GH200 †"}
    assert "†" not in plain_table(of(replace(PARTLY, step=replace(PARTLY.step, measured_seconds=0.1))))
    file = tmp_path / "gpus.toml"
    file.write_text('[gpu.MI300X]\nlike = "H100-SXM-80GB"\nmemory_gib = 192\n', encoding="utf-8")
    (own,) = read_gpus(file)
    assert "MI300X †" in plain_table(of(replace(with_values(MINIMAL, extrapolated_share=0.0), layout=Layout(own))))


def test_columns_without_room_or_values_are_named_and_cells_have_two_lines() -> None:
    wide, narrow = printed(TEN, 200, verbose=True), printed(TEN, 80, verbose=True)
    assert "Columns left out" not in wide
    assert "mlp 65 %, wave 20 %, roofline 10 %, measured 5 %" in wide
    # 22 + 7 + 10 + 8 + 6 + 12 characters and five gaps of 2 are 75; 82 with the price of an hour.
    hidden = listed(narrow, "Columns left out (line too narrow)")
    assert hidden >= {"90 % of steps (ms)", "bound by", "$/h", "covered by"}
    assert max(map(len, narrow.splitlines())) <= 80
    assert "Covered by:" not in narrow  # the note of an omitted column is omitted, too
    header = printed(Predictions(TEN.items_in_order[1:5]), 80).splitlines()[0]
    assert header.rstrip().endswith("bound by")
    assert "$/h" not in header
    text = plain_table(BARE, verbose=True)
    assert "memory" not in text.partition("\n\n")[0]
    assert listed(text, "Unknown for all rows") >= {"cost", "$/h", "memory (GiB)", "covered by"}
    assert "unknown" in next(line for line in plain_table(FULL).splitlines() if line.startswith("K80"))
    # Without the interval of steps, what bounds them and the price: 75 characters, a gap, and "roofline 10 %, measured
    # 5 %" (28).
    two_lines, left_out = printed(TEN, 75 + 2 + 28, verbose=True), printed(TEN, 75 + 2 + 27, verbose=True)
    assert "mlp 65 %, wave 20 %,\n" in two_lines
    assert "$/h, bound by, covered by." in left_out


def test_ascii_console_gets_only_ascii() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_table(replace(AT_MOST, notes=("± 5 %",)), Console(file=file, width=120))
    file.seek(0)
    text = file.read()
    assert all(words in text for words in ("< 3 h 12 min", "-25/+42 %", "~ 5 %"))


def test_rich_markup_is_printed_literally_and_markdown_escaped() -> None:
    assert "[bold]x[/] :smile:" in printed(Predictions((MINIMAL,), notes=("[bold]x[/] :smile:",)), 80)
    text = markdown_table(Predictions((MINIMAL,), used_gpu="L4", notes=("a|b *c* <script>",)))
    assert "| L4 (recorded) |" in text
    assert r"- a\|b \*c\* &lt;script>" in text


def test_file_output_is_120_wide(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    print_table(FULL)
    assert "too large: 12.5 of 10.5  device" in capsys.readouterr().out


def test_gpu_in_use_is_bold_and_too_small_gpu_dim() -> None:
    console = Console(file=io.StringIO(), width=120, color_system="standard", force_terminal=True)
    with console.capture() as capture:
        print_table(FULL, console)
    bold, dim = "\x1b[1m", "\x1b[2m"
    t4, h100, k80 = capture.get().splitlines()[2:5]
    assert bold not in h100
    assert dim not in h100
    assert t4.startswith(f"{bold}T4 (recorded)")
    assert k80.startswith(f"{dim}K80")


# TensorBoard carries a copy of html5lib that warns about itself when it is imported.
@pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated:DeprecationWarning")
def test_tensorboard_renders_markdown_table() -> None:
    from tensorboard.plugin_util import markdown_to_safe_html

    page = markdown_to_safe_html(markdown_table(FULL))
    assert "<td>mlp 70 %,<br>wave 30 %,<br>roofline &lt;1 %</td>" in page
    assert "<td>T4 (recorded)</td>" in page
    assert page.count("<tr>") == 1 + len(FULL)
    assert "<li>2 of 418 operations were not timed on the host.</li>" in page
