"""Tables and their footnotes: golden texts, room, colours, and what no table may claim."""

from __future__ import annotations

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
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.user_gpus import read_gpus
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.table import grid, plain_table, print_table
from lightning_predict.reports.table_markup import markdown_table
from lightning_predict.reports.table_notes import NOTES
from lightning_predict.reports.table_rows import folded_gpus, is_bound_by_links
from lightning_predict.testing import example_machine, with_values
from lightning_predict.timeline.verdict import Verdict
from tests.reports.example import AT_MOST, BARE, FULL, GIBIBYTE, H100, K80, MINIMAL, T4, TEN


def of(*predictions: object) -> Predictions:
    return Predictions(tuple(predictions))  # type: ignore[arg-type]


def notes(condition: str, predictions: Predictions) -> list[str]:
    return list(NOTES[condition](predictions))


def bound_notes(predictions: Predictions) -> list[str]:
    return [note for limit in ("links", "host", "loader") for note in notes(f"bound by {limit}", predictions)]


def test_the_loader_is_named_where_it_takes_longer_than_the_step() -> None:
    # 48 ms a step on the T4, 6 ms on the H100, and 20 ms for the loader on either.
    slow, fast = with_values(T4, loader_seconds=0.020), with_values(H100, loader_seconds=0.020)
    shown = grid(of(slow, fast))
    column = [one.title for one in shown.columns].index("bound by")
    assert [row[column] for row in shown.rows] == ["device", "loader"]
    (note,) = notes("bound by loader", of(slow, fast))
    assert note.startswith("Bound by loader: it takes 20.0 ms per step on any GPU")
    assert notes("bound by loader", (of(slow))) == []


def test_gpus_that_the_loader_makes_equal_have_one_row_the_cheapest() -> None:
    # 240,000 steps of 20 ms for the loader: 4,800 s = 1 h 20 min on each; $2.99, $1.99, $4.50 and no price an hour.
    waiting = with_values(H100, loader_seconds=0.020, total=Interval(4_800.0, 4_800.0, 4_800.0))
    cheaper = with_values(waiting, layout="A100-SXM-80GB", usd_per_hour=1.99, cost_usd=2.65)
    unpriced = with_values(waiting, layout="B200-SXM-180GB", usd_per_hour=None, cost_usd=None, offer=None)
    dearest = with_values(waiting, layout="H200-SXM-141GB", usd_per_hour=4.5, cost_usd=6.0)
    shown = of(T4, waiting, cheaper, dearest, unpriced)
    text = plain_table(shown)
    assert [row.split()[0] for row in text.splitlines()[2:4]] == ["T4", "A100-SXM-80GB"]
    assert (
        "H100-SXM-80GB, H200-SXM-141GB would not be faster than the cheaper A100-SXM-80GB: the loader limits this step."
        in " ".join(text.split())
    )
    assert any(row.startswith("B200-SXM-180GB ") for row in text.splitlines())  # it may cost less
    assert "would not be faster" not in plain_table(shown, verbose=True)
    assert plain_table(shown, verbose=True).count("loader  ") >= 3
    # The machine in use keeps its row, and nothing is folded that memory tells apart or the device bounds.
    in_use = Predictions((T4, waiting, cheaper), used_gpu="H100-SXM-80GB")
    assert list(folded_gpus(in_use)) == []
    assert list(folded_gpus(of(waiting, with_values(cheaper, memory_fit="tight")))) == []
    assert list(folded_gpus(of(T4, with_values(T4, layout="L4")))) == []


def test_the_gpu_in_use_is_shown_with_what_would_have_been_predicted() -> None:
    used = Predictions((with_values(T4, unmeasured_seconds=0.0380),), used_gpu="T4")
    assert notes("in use", (used)) == [
        "T4: a step takes 47.5 ms (measured). Without that measurement, the prediction is 38.0 ms (-20 %)."
    ]
    assert notes("in use", (of(T4))) == []


def test_what_a_faster_gpu_gains_is_said_where_the_host_is_the_limit() -> None:
    host = Verdict(bound_by="host", idle_share=0.3, gain=0.042, critical_path={})
    device = Verdict(bound_by="device", idle_share=0.0, gain=0.5, critical_path={})
    fast, slow = with_values(H100, verdict=host), with_values(T4, verdict=device)
    stuck = with_values(fast, layout="B200-SXM-180GB", verdict=replace(host, gain=0.0))
    twin = with_values(stuck, layout="H200-SXM-141GB")
    assert bound_notes(of(slow, fast, stuck, twin)) == [
        "Bound by host: the CPU limits kernel launches. A GPU twice as fast gains only 0 % (B200-SXM-180GB, "
        "H200-SXM-141GB), 4 % (H100-SXM-80GB)."
    ]
    assert bound_notes(of(slow)) == []
    (note,) = bound_notes(of(with_values(fast, loader_seconds=1.0)))  # then the host is not the limit
    assert note.startswith("Bound by loader")


def test_a_bound_that_an_assumed_host_leaves_open_is_marked() -> None:
    verdict = Verdict(bound_by="device", idle_share=0.0, gain=0.3, critical_path={}, is_doubtful=True)
    doubtful = with_values(T4, verdict=verdict)
    assert notes("uncertain bottleneck", (of(doubtful))) == [
        "?: the CPU speed is assumed, so either host or device may be the bottleneck."
    ]
    assert notes("uncertain bottleneck", (of(T4))) == []
    assert cells(of(doubtful))[0]["bound by"] == "device?"


def test_checkpoints_are_mentioned_where_they_count() -> None:
    # 11,520 s in all: 1 % are 115.2 s.
    interval = "Interval (90 %): nine in ten measured times should lie in it."
    assert notes("parts of total", (of(with_values(T4, checkpoint_seconds=100.0)))) == [interval]
    (_, note) = notes("parts of total", of(with_values(T4, checkpoint_seconds=120.0, checkpoint_is_estimated=True)))
    assert note == "Total: 2 min for checkpoints, estimated from their size."
    (_, note) = notes("parts of total", of(with_values(T4, checkpoint_seconds=120.0)))
    assert note == "Total: 2 min for checkpoints."


def cells(predictions: Predictions, **options: bool) -> list[dict[str, str]]:
    """The rows of a table by the titles of its columns."""
    shown = grid(predictions, **options)  # type: ignore[arg-type]
    return [dict(zip((one.title for one in shown.columns), row, strict=True)) for row in shown.rows]


def test_where_the_length_is_not_known_a_thousand_steps_are_shown() -> None:
    # A step of 20 ms and its wait of 5 ms, 1,000 times; a step is 18 to 23 ms, with its wait 23 to 28.
    (row,) = cells(of(with_values(MINIMAL, cycle_seconds=0.025, usd_per_hour=3.6)))
    assert (row["step"], row["1,000 steps"], row["(90 %)"]) == ("20.0 ms", "25.0 s", "± 12 %")
    assert row["cost"] == "$0.0250"  # 25 s at $0.001 a second
    assert "total" in cells(of(T4))[0]
    assert notes("epoch", (of(with_values(MINIMAL, epoch_seconds=90.0)))) == [
        "Time of a training epoch: L4 1 min 30 s."
    ]
    assert notes("epoch", (of(T4, MINIMAL))) == []


def test_the_machine_in_use_is_the_first_row() -> None:
    machine = example_machine("CPU", 0.412, total=Interval(24_000.0, 24_060.0, 24_100.0))
    rows = cells(Predictions((H100, T4), machine=machine, is_running=True))
    assert [row["GPU"] for row in rows] == ["this CPU", "H100-SXM-80GB", "T4"]
    assert (rows[0]["step"], rows[0]["rest of the run"], rows[0]["(90 %)"]) == ("412 ms", "6 h 41 min", "± 1 %")
    assert rows[0]["cost"] == rows[0]["memory (GiB)"] == ""  # the price of an own computer is unknown
    asked = cells(Predictions((H100, T4), used_gpu="T4", is_running=True))
    assert [row["GPU"] for row in asked] == ["this T4", "H100-SXM-80GB"]
    assert asked[0]["(90 %)"] == "± 8 %"


def test_what_may_end_earlier_is_marked_in_every_row_but_not_of_a_thousand_steps() -> None:
    total = Interval(24_000.0, 24_060.0, 24_100.0)
    machine = example_machine("CPU", 0.412, total=total, at_most=True)
    stopping = Predictions((with_values(T4, at_most=True),), machine=machine, is_running=True)
    assert all(row["rest of the run"].startswith("≤ ") for row in cells(stopping))
    assert notes("early end", (stopping)) == ["≤: the run may end earlier."]
    endless = of(with_values(MINIMAL, at_most=True, cycle_seconds=0.025, usd_per_hour=3.6))
    assert cells(endless)[0]["1,000 steps"] == "25.0 s"
    assert notes("early end", (endless)) == []


def test_a_heading_says_what_is_predicted() -> None:
    headed = replace(FULL, heading="Rest of this run: 240,000 steps × batch 64")  # noqa: RUF001
    assert plain_table(headed).splitlines()[:2] == [headed.heading, ""]
    assert markdown_table(headed).startswith("**Rest of this run: 240,000 steps × batch 64**\n\n|")  # noqa: RUF001
    assert printed(headed, 120).splitlines()[0] == headed.heading


def test_memory_says_whether_it_fits() -> None:
    shown = [row["memory (GiB)"] for row in cells(of(T4, K80, with_values(T4, gpu="Narrow", memory_fit="tight")))]
    # 7.81 + 6.29 GiB; 12.5 - 2.0 GiB. What does not fit stands last, for any requested order.
    assert shown == ["7.81 of 14.1", "tight: 7.81 of 14.1", "too large: 12.5 of 10.5"]


def test_old_prices_are_warned_of() -> None:
    # From 2026-05-25 to 2026-11-21 are 180 days, to the 22nd 181.
    may, march = with_values(T4, priced_on="2026-05-25"), with_values(H100, priced_on="2026-03")
    assert notes("old prices", (replace(of(may), made_on="2026-11-21"))) == []
    assert notes("old prices", (replace(of(may, march), made_on="2026-11-22"))) == [
        "Prices older than 180 days: T4 (2026-05-25), H100-SXM-80GB (2026-03). Check them before you rent."
    ]
    assert notes("old prices", (of(may))) == []  # without a day of the prediction


def test_what_no_network_of_its_own_timed_is_said_from_a_tenth_on() -> None:
    assert notes("indirect", (of(T4))) == []  # 8 %
    part = with_values(H100, coverage={"mlp": 0.7, "proxy": 0.2, "bytes": 0.1})
    (note,) = notes("indirect", of(T4, part))
    assert note.startswith("8 to 30 % of the GPU time is estimated indirectly")
    assert notes("indirect", (of(with_values(part, memory_fit="exceeds")))) == []  # not for rent


def test_the_brief_table_keeps_what_changes_no_decision_for_verbose() -> None:
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


def test_several_gpus_say_what_they_wait_for_and_what_they_work_through() -> None:
    alone = with_values(MINIMAL, iteration=Interval(0.4, 0.4, 0.4))
    four = with_values(MINIMAL, layout="4xT4", iteration=Interval(0.5, 0.5, 0.5), added_seconds=0.1)
    eight = with_values(MINIMAL, layout="8xT4", iteration=Interval(1.0, 1.0, 1.0), added_seconds=0.6)
    (waits,) = notes("bound by links", of(alone, four, eight))
    assert waits == "Several GPUs: share of a step spent waiting for other GPUs: 20 % (4xT4), 60 % (8xT4)."
    (samples,) = notes("fewer steps", of(alone, four, eight))
    assert samples.endswith("each replica processes the recorded number of samples. That leaves fewer steps.")
    whole = with_values(eight, iterations=125, samples_per_iteration=128)
    (counted,) = notes("fewer steps", of(alone, four, whole))
    assert counted.endswith("That leaves fewer steps: 125 of 128 samples (8xT4).")
    assert notes("fewer steps", (of(alone))) == []
    assert [is_bound_by_links(one) for one in (alone, four, eight)] == [False, False, True]
    assert notes("bound by links", (of(alone))) == []


def test_several_gpus_that_lack_memory_are_sent_to_the_search() -> None:
    short = {"memory_fit": "exceeds", "memory_free_bytes": -2.0 * GIBIBYTE}
    (alone,) = notes("too large", of(with_values(MINIMAL, **short)))
    (many,) = notes("too large", of(with_values(MINIMAL, **short), with_values(MINIMAL, layout="8xT4", **short)))
    assert alone.endswith("`lightning-predict trace memory` shows what fills the memory and what would help.")
    assert many.endswith(
        "8xT4 lacks at least 2.00 GiB. `lightning-predict trace memory` shows what fills the memory and what "
        "would help. `lightning-predict parallel` finds ways to split the model among GPUs."
    )


EXAMPLES = {"full": FULL, "bare": BARE, "at_most": AT_MOST, "ten": TEN}


def printed(predictions: Predictions, width: int, *, verbose: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        print_table(predictions, console, verbose=verbose)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").splitlines())


def sections(texts: Mapping[str, str]) -> str:
    """Put texts under their names in one golden file: one test and one file for a kind of table."""
    return "\n\n".join(f"=== {name}\n{text}" for name, text in texts.items())


def test_what_tables_print(golden: Callable[[str, str], None]) -> None:
    golden("plain.txt", sections({name: plain_table(one) for name, one in EXAMPLES.items()}))
    golden("verbose.txt", sections({name: plain_table(one, verbose=True) for name, one in EXAMPLES.items()}))
    golden("markdown.txt", sections({name: markdown_table(one) for name, one in EXAMPLES.items()}))
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


@given(st.lists(predictions_of_any_size, min_size=1, max_size=5, unique_by=lambda one: one.gpu))
def test_a_plain_table_is_aligned_and_at_most_120_wide(predictions: list[Prediction]) -> None:
    lines = plain_table(Predictions(tuple(predictions), notes=("word " * 100,))).splitlines()
    assert max(map(len, lines)) <= 120
    rule = next(number for number, line in enumerate(lines) if line.startswith("---"))
    # Where the rule has a gap between two columns, no line of the table has a character.
    gaps = [place for place, character in enumerate(lines[rule]) if character == " "]
    table = lines[: lines.index("")]
    assert all(line[place : place + 1] in ("", " ") for line in table for place in gaps)


@given(st.lists(predictions_of_any_size, min_size=1, max_size=3, unique_by=lambda one: one.gpu))
def test_markdown_has_as_many_cells_in_each_row(predictions: list[Prediction]) -> None:
    table = markdown_table(Predictions(tuple(predictions))).split("\n\n")[0].splitlines()
    assert len(table) == 2 + len(predictions)
    assert len({line.count(" |") for line in table}) == 1


def listed(text: str, label: str) -> set[str]:
    """Return the names that a note lists after its label, whichever others a table has."""
    names = re.search(rf"{re.escape(label)}: (.*?)\.( |$)", " ".join(text.split()))
    assert names is not None, text
    return set(names[1].split(", "))


def test_a_column_in_which_nothing_is_known_is_left_out_and_named() -> None:
    text = plain_table(BARE, verbose=True)
    assert "memory" not in text.partition("\n\n")[0]
    assert listed(text, "Unknown for all rows") >= {"cost", "$/h", "memory (GiB)", "covered by"}


def test_a_single_unknown_value_is_called_unknown() -> None:
    row = next(line for line in plain_table(FULL).splitlines() if line.startswith("K80"))
    assert "unknown" in row


def test_a_gpu_in_use_that_was_only_recorded_is_not_called_this_one() -> None:
    assert plain_table(FULL).splitlines()[2].startswith("T4 (recorded)  47.5 ms")
    assert plain_table(replace(FULL, is_running=True)).splitlines()[2].startswith("this T4 ")
    predicted = cells(Predictions((MINIMAL,), used_gpu="L4"))  # without a measured step
    assert (predicted[0]["GPU"], predicted[0]["step"], predicted[0]["(90 %)"]) == ("L4 (recorded)", "20.0 ms", "± 15 %")


def test_a_run_that_may_end_earlier_costs_and_takes_at_most() -> None:
    text = plain_table(AT_MOST)
    assert "≤ 3 h 12 min" in text
    assert "≤ $1.12" in text
    assert "≤: the run may end earlier." in plain_table(AT_MOST, verbose=True)
    assert "≤" not in plain_table(FULL)


def test_every_price_is_given_with_its_source_and_date() -> None:
    assert (
        "Prices: H100-SXM-80GB $2.99/h, Lambda gpu_1x_h100_sxm5 (2026-11-01); "
        "T4 $0.35/h, Google n1-standard-4 (2026-10-01)." in plain_table(FULL, verbose=True)
    )


def test_one_price_for_several_gpus_is_given_once() -> None:
    one_price = Predictions(
        tuple(with_values(T4, gpu=name, offer="user (2026-11-21)", usd_per_hour=1.0) for name in ("T4", "L4"))
    )
    assert "Prices: T4, L4 $1.00/h, user (2026-11-21)." in plain_table(one_price, verbose=True)


def test_a_price_without_a_source_says_so() -> None:
    assert "T4 $0.35/h, source not stated." in plain_table(Predictions((with_values(T4, offer=None),)), verbose=True)


def test_a_note_of_some_names_them_and_a_note_of_all_does_not() -> None:
    noted = tuple(with_values(MINIMAL, gpu=name, notes=details(("same", f"only {name}"))) for name in ("L4", "A10"))
    assert plain_table(Predictions(noted), verbose=True).endswith("\nsame\nL4: only L4\nA10: only A10")


def test_a_method_without_an_explanation_is_still_named() -> None:
    text = plain_table(Predictions((with_values(MINIMAL, coverage={"new": 0.75, "mlp": 0.25}),)), verbose=True)
    assert "new 75 %, mlp 25 %" in text
    assert "(mlp: a network trained on the operation and dtype; new)" in text


def test_a_gpu_that_networks_never_saw_is_marked_and_named() -> None:
    seen = with_values(MINIMAL, layout="T4", coverage={"mlp": 1.0}, extrapolated_share=0.4)
    partly = with_values(MINIMAL, layout="L4", coverage={"mlp": 0.6, "proxy": 0.4}, extrapolated_share=0.6)
    unseen = [
        with_values(MINIMAL, gpu=name, coverage={"mlp": 1.0}, extrapolated_share=1.0) for name in ("A10G", "GH200")
    ]
    text = plain_table(Predictions((seen, partly, *unseen)), verbose=True)
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert rows["T4"].split()[1] != "†"
    assert rows["L4"].startswith("L4 † ")
    assert rows["A10G"].startswith("A10G † ")
    note = "† 60 to 100 % of these GPUs' time is extrapolated from other GPUs (no measurements on them)."
    for verbose in (False, True):  # it changes a decision, so that it is said without being asked for
        assert note in plain_table(Predictions((seen, partly, *unseen)), verbose=verbose).replace("\n  ", " ")
    assert "† Extrapolated share of each GPU: 60 % (L4), 100 % (A10G, GH200)." in text.replace("\n  ", " ")
    (alone,) = notes("extrapolated", Predictions((seen, partly)))
    assert alone == "† 60 % of this GPU's time is extrapolated from other GPUs (no measurements on the L4)."
    assert "†" not in plain_table(Predictions((seen,)), verbose=True)
    measured = replace(partly, step=replace(partly.step, measured_seconds=0.1))
    assert "†" not in plain_table(Predictions((measured,)))


def test_a_gpu_that_a_file_describes_is_marked_however_it_is_timed(tmp_path: Path) -> None:
    file = tmp_path / "gpus.toml"
    file.write_text('[gpu.MI300X]\nlike = "H100-SXM-80GB"\nmemory_gib = 192\n', encoding="utf-8")
    (own,) = read_gpus(file)
    other = replace(with_values(MINIMAL, extrapolated_share=0.0), layout=Layout(own))
    assert "MI300X †" in plain_table(Predictions((other,)))


def test_columns_that_a_terminal_has_no_room_for_are_named() -> None:
    wide, narrow = printed(TEN, 200, verbose=True), printed(TEN, 80, verbose=True)
    assert "Columns left out" not in wide
    assert "mlp 65 %, wave 20 %, roofline 10 %, measured 5 %" in wide
    # 22 + 7 + 10 + 8 + 6 + 12 characters and five gaps of 2 are 75; 82 with the price of an hour.
    assert listed(narrow, "Columns left out (line too narrow)") >= {
        "90 % of steps (ms)",
        "bound by",
        "$/h",
        "covered by",
    }
    assert max(map(len, narrow.splitlines())) <= 80
    # The note of an omitted column is omitted, too.
    assert "Covered by:" not in narrow


def test_a_cell_takes_two_lines_before_its_column_is_left_out_and_never_three() -> None:
    # Without the interval of steps, what bounds them and the price: 75 characters, a gap, and "roofline 10 %, measured
    # 5 %" (28).
    two_lines, left_out = printed(TEN, 75 + 2 + 28, verbose=True), printed(TEN, 75 + 2 + 27, verbose=True)
    assert "mlp 65 %, wave 20 %,\n" in two_lines
    assert "$/h, bound by, covered by." in left_out


def test_a_terminal_of_80_columns_keeps_the_bottleneck_and_drops_the_price_per_hour() -> None:
    shown = printed(Predictions(TEN.items_in_order[1:5]), 80)
    header = shown.splitlines()[0]
    assert header.rstrip().endswith("bound by")
    assert "$/h" not in header
    assert "left out (line too narrow): $/h." in " ".join(shown.split())


def test_a_console_that_is_not_unicode_gets_only_its_own_characters() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_table(replace(AT_MOST, notes=("± 5 %",)), Console(file=file, width=120))
    file.seek(0)
    text = file.read()
    assert "< 3 h 12 min" in text
    assert "-25/+42 %" in text
    assert "~ 5 %" in text


def test_what_looks_like_markup_is_printed_as_it_is() -> None:
    assert "[bold]x[/] :smile:" in printed(Predictions((MINIMAL,), notes=("[bold]x[/] :smile:",)), 80)


def test_standard_output_that_is_a_file_is_120_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    print_table(FULL)
    assert "too large: 12.5 of 10.5  device" in capsys.readouterr().out


def test_the_gpu_in_use_is_bold_and_one_that_does_not_fit_is_dim() -> None:
    console = Console(file=io.StringIO(), width=120, color_system="standard", force_terminal=True)
    with console.capture() as capture:
        print_table(FULL, console)
    bold, dim = "\x1b[1m", "\x1b[2m"
    t4, h100, k80 = capture.get().splitlines()[2:5]
    assert bold not in h100
    assert dim not in h100
    assert t4.startswith(f"{bold}T4 (recorded)")
    assert k80.startswith(f"{dim}K80")


def test_markdown_escapes_what_markdown_would_read() -> None:
    text = markdown_table(Predictions((MINIMAL,), used_gpu="L4", notes=("a|b *c* <script>",)))
    assert "| L4 (recorded) |" in text
    assert r"- a\|b \*c\* &lt;script>" in text


# TensorBoard carries a copy of html5lib that warns about itself when it is imported.
@pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated:DeprecationWarning")
def test_markdown_reads_as_written_in_tensorboard() -> None:
    from tensorboard.plugin_util import markdown_to_safe_html

    page = markdown_to_safe_html(markdown_table(FULL))
    assert "<td>mlp 70 %,<br>wave 30 %,<br>roofline &lt;1 %</td>" in page
    assert "<td>T4 (recorded)</td>" in page
    assert page.count("<tr>") == 1 + len(FULL)
    assert "<li>2 of 418 operations were not timed on the host.</li>" in page
