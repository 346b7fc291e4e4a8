"""Tables and their footnotes: golden texts, room, colours, and what no table may claim."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lightning_predict.cost.prediction import Prediction
from lightning_predict.interval import Interval
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.table import (
    bound_notes,
    grid,
    in_use_note,
    is_bound_by_links,
    links_note,
    loader_note,
    markdown_table,
    plain_table,
    print_table,
    total_notes,
    unknown_length_note,
)
from lightning_predict.testing import changed
from lightning_predict.timeline.verdict import Verdict
from tests.reports.example import AT_MOST, BARE, FULL, H100, K80, MINIMAL, T4, TEN


def of(*predictions: object) -> Predictions:
    return Predictions(tuple(predictions))  # type: ignore[arg-type]


def test_the_loader_is_named_where_it_takes_longer_than_the_step() -> None:
    # 48 ms a step on the T4, 6 ms on the H100, and 20 ms for the loader on either.
    slow, fast = changed(T4, loader_seconds=0.020), changed(H100, loader_seconds=0.020)
    shown = grid(of(slow, fast))
    column = [one.title for one in shown.columns].index("bound by")
    assert [row[column] for row in shown.rows] == ["device", "loader"]
    (note,) = loader_note(of(slow, fast))
    assert note.startswith("Bound by loader: it takes 20.0 ms for the batches of an iteration on any GPU")
    assert list(loader_note(of(slow))) == []


def test_the_gpu_in_use_is_shown_with_what_would_have_been_predicted() -> None:
    used = Predictions((changed(T4, unmeasured_seconds=0.0380),), used_gpu="T4")
    assert list(in_use_note(used)) == [
        "* In use now: an iteration takes 47.5 ms (measured); without that, 38.0 ms would be predicted (-20 %)."
    ]


def test_what_a_faster_gpu_gains_is_said_where_the_host_is_the_limit() -> None:
    host = Verdict(bound_by="host", idle_share=0.3, gain=0.042, critical_path={})
    device = Verdict(bound_by="device", idle_share=0.0, gain=0.5, critical_path={})
    fast, slow = changed(H100, verdict=host), changed(T4, verdict=device)
    stuck = changed(fast, layout="B200-SXM-180GB", verdict=replace(host, gain=0.0))
    twin = changed(stuck, layout="H200-SXM-141GB")
    assert list(bound_notes(of(slow, fast, stuck, twin))) == [
        "Bound by host: it cannot launch faster, so a GPU twice as fast gains 0 % (B200-SXM-180GB, H200-SXM-141GB), "
        "4 % (H100-SXM-80GB)."
    ]
    assert list(bound_notes(of(slow))) == []
    (note,) = bound_notes(of(changed(fast, loader_seconds=1.0)))  # then the host is not the limit
    assert note.startswith("Bound by loader")


def test_a_bound_that_an_assumed_host_leaves_open_is_marked() -> None:
    verdict = Verdict(bound_by="device", idle_share=0.0, gain=0.3, critical_path={}, is_doubtful=True)
    doubtful = changed(T4, verdict=verdict)
    assert list(bound_notes(of(doubtful))) == [
        "Bound by host? or device?: which of the two is not sure, as the host was assumed."
    ]
    assert " device? " in plain_table(of(doubtful))


def test_checkpoints_are_mentioned_where_they_count() -> None:
    # 11,520 s in all: 1 % are 115.2 s.
    assert list(total_notes(of(changed(T4, checkpoint_seconds=100.0)))) == []
    (note,) = total_notes(of(changed(T4, checkpoint_seconds=120.0, checkpoint_is_estimated=True)))
    assert note == "Total: 2 min for checkpoints, estimated from their size."
    (note,) = total_notes(of(changed(T4, checkpoint_seconds=120.0)))
    assert note == "Total: 2 min for checkpoints."


def test_an_unknown_length_has_the_time_of_steps_and_epochs() -> None:
    unknown = changed(MINIMAL, cycle_seconds=0.025, epoch_seconds=90.0)
    assert list(unknown_length_note(of(unknown))) == [
        "The length of this run is not known. 1,000 steps of training take: L4 25.0 s.",
        "An epoch of training takes: L4 1 min 30 s.",
    ]
    assert list(unknown_length_note(of(changed(unknown, epoch_seconds=None)))) == [
        "The length of this run is not known. 1,000 steps of training take: L4 25.0 s."
    ]
    assert list(unknown_length_note(of(T4))) == []


def test_several_gpus_say_what_they_wait_for_and_what_they_work_through() -> None:
    alone = changed(MINIMAL, iteration=Interval(0.4, 0.4, 0.4))
    four = changed(MINIMAL, layout="4xT4", iteration=Interval(0.5, 0.5, 0.5), added_seconds=0.1)
    eight = changed(MINIMAL, layout="8xT4", iteration=Interval(1.0, 1.0, 1.0), added_seconds=0.6)
    notes = list(links_note(of(alone, four, eight)))
    assert notes[0] == "Several GPUs: of an iteration, they wait for each other 20 % (4xT4), 60 % (8xT4)."
    assert "each copy of the model takes as many samples" in notes[1]
    assert [is_bound_by_links(one) for one in (alone, four, eight)] == [False, False, True]
    assert list(links_note(of(alone))) == []


EXAMPLES = {"full": FULL, "bare": BARE, "at_most": AT_MOST, "ten": TEN}


def printed(predictions: Predictions, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        print_table(predictions, console)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").splitlines())


@pytest.mark.parametrize("name", EXAMPLES)
def test_plain_table(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"plain_{name}.txt", plain_table(EXAMPLES[name]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_markdown_table(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"markdown_{name}.txt", markdown_table(EXAMPLES[name]))


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", ["full", "ten"])
def test_rich_table_in_a_terminal(name: str, width: int, golden: Callable[[str, str], None]) -> None:
    golden(f"rich_{name}_{width}.txt", printed(EXAMPLES[name], width))


shares = st.fixed_dictionaries(
    {}, optional={method: st.floats(0, 1) for method in ("mlp", "proxy", "bytes", "wave", "roofline", "measured")}
)
seconds = st.floats(min_value=1e-6, max_value=1e6)
totals = st.floats(min_value=0, max_value=1e9)
predictions_of_any_size = st.builds(
    changed,
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


def test_a_column_in_which_nothing_is_known_is_left_out_and_named() -> None:
    text = plain_table(BARE)
    assert "fits" not in text.partition("\n\n")[0]
    assert "Not known for any of them: total, cost, memory (GiB), fits, covered by." in text


def test_a_single_unknown_value_is_called_unknown() -> None:
    row = next(line for line in plain_table(FULL).splitlines() if line.startswith("K80"))
    assert "unknown" in row


def test_the_gpu_in_use_is_marked_and_its_measured_step_given() -> None:
    text = plain_table(FULL)
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("T4 ")] == [["T4", "*"]]
    assert "* In use now: an iteration takes 47.5 ms (measured)." in text


def test_a_gpu_in_use_without_a_measured_step_is_marked_all_the_same() -> None:
    text = plain_table(Predictions((MINIMAL,), used_gpu="L4"))
    assert "* In use now.\n" in text


def test_a_gpu_in_use_that_was_not_asked_for_is_named() -> None:
    assert "In use now: A100-SXM-80GB, which was not asked for." in plain_table(AT_MOST)


def test_a_run_that_may_end_earlier_costs_and_takes_at_most() -> None:
    text = plain_table(AT_MOST)
    assert "≤ 3 h 12 min" in text
    assert "≤ $1.12" in text
    assert "≤: the run may end earlier." in text
    assert "≤" not in plain_table(FULL)


def test_every_price_is_given_with_its_source_and_date() -> None:
    assert (
        "Prices: H100-SXM-80GB $2.99/h, Lambda gpu_1x_h100_sxm5 (2026-11-01); "
        "T4 $0.35/h, Google n1-standard-4 (2026-10-01)." in plain_table(FULL)
    )


def test_one_price_for_several_gpus_is_given_once() -> None:
    one_price = Predictions(
        tuple(changed(T4, gpu=name, offer="user (2026-11-21)", usd_per_hour=1.0) for name in ("T4", "L4"))
    )
    assert "Prices: T4, L4 $1.00/h, user (2026-11-21)." in plain_table(one_price)


def test_a_price_without_a_source_says_so() -> None:
    assert "T4 $0.35/h, source not stated." in plain_table(Predictions((changed(T4, offer=None),)))


def test_a_note_of_some_names_them_and_a_note_of_all_does_not() -> None:
    noted = tuple(changed(MINIMAL, gpu=name, notes=("same", f"only {name}")) for name in ("L4", "A10"))
    assert "\nsame\nL4: only L4\nA10: only A10\n" in plain_table(Predictions(noted))


def test_a_method_without_an_explanation_is_still_named() -> None:
    text = plain_table(Predictions((changed(MINIMAL, coverage={"new": 0.75, "mlp": 0.25}),)))
    assert "new 75 %, mlp 25 %" in text
    assert "(mlp: a network trained on the operation and dtype; new)" in text


def test_a_gpu_that_networks_never_saw_is_marked_and_named() -> None:
    seen = changed(MINIMAL, layout="T4", coverage={"mlp": 1.0}, base_share=0.05)
    partly = changed(MINIMAL, layout="L4", coverage={"mlp": 0.6, "proxy": 0.4}, base_share=0.4)
    unseen = [changed(MINIMAL, gpu=name, coverage={"mlp": 1.0}, base_share=1.0) for name in ("A10G", "GH200")]
    text = plain_table(Predictions((seen, partly, *unseen)))
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert rows["T4"].endswith("mlp 100 %")
    assert rows["L4"].endswith("mlp 60 %, proxy 40 % †")
    assert rows["A10G"].endswith("mlp 100 % †")
    note = "†: networks that know that GPU by its data sheet alone timed 40 % (L4), 100 % (A10G, GH200)."
    assert note in text.replace("\n  ", " ")
    assert "†" not in plain_table(Predictions((seen,)))


def test_columns_that_a_terminal_has_no_room_for_are_named() -> None:
    wide, narrow = printed(TEN, 200), printed(TEN, 80)
    assert "Left out" not in wide
    assert "mlp 65 %, wave 20 %, roofline 10 %, measured 5 %" in wide
    # 22 + 9 + 10 + 10 + 5 + 6 + 4 + 6 characters and seven gaps of 2 are 86; 78 without "bound by".
    assert "Left out for want of room: covered by, bound by." in narrow
    assert max(map(len, narrow.splitlines())) <= 80
    # What a left-out column means is left out with it.
    assert "Covered by:" not in narrow


def test_a_cell_takes_two_lines_before_its_column_is_left_out_and_never_three() -> None:
    # Beside the other columns (88 characters with their gaps) 28 are enough for "roofline 10 %, measured 5 %".
    two_lines, left_out = printed(TEN, 88 + 28), printed(TEN, 88 + 27)
    assert "mlp 65 %, wave 20 %,\n" in two_lines
    assert "Left out for want of room: covered by." in left_out


def test_a_console_that_is_not_unicode_gets_only_its_own_characters() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_table(replace(AT_MOST, notes=("± 5 %",)), Console(file=file, width=120))
    file.seek(0)
    text = file.read()
    assert "< 3 h 12 min" in text
    assert "45.0-52.0" in text
    assert "? 5 %" in text


def test_what_looks_like_markup_is_printed_as_it_is() -> None:
    assert "[bold]x[/] :smile:" in printed(Predictions((MINIMAL,), notes=("[bold]x[/] :smile:",)), 80)


def test_standard_output_that_is_a_file_is_120_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    print_table(FULL)
    assert "mlp 70 %, wave 30 %, roofline <1 %" in capsys.readouterr().out


def test_the_gpu_in_use_is_bold_and_one_that_does_not_fit_is_dim() -> None:
    console = Console(file=io.StringIO(), width=120, color_system="standard", force_terminal=True)
    with console.capture() as capture:
        print_table(FULL, console)
    bold, dim = "\x1b[1m", "\x1b[2m"
    h100, t4, k80 = capture.get().splitlines()[3:6]
    assert bold not in h100
    assert dim not in h100
    assert t4.startswith(f"{bold}T4 *")
    assert k80.startswith(f"{dim}K80")


def test_markdown_escapes_what_markdown_would_read() -> None:
    text = markdown_table(Predictions((MINIMAL,), used_gpu="L4", notes=("a|b *c* <script>",)))
    assert r"| L4 \* |" in text
    assert r"- a\|b \*c\* &lt;script>" in text


# TensorBoard carries a copy of html5lib that warns about itself when it is imported.
@pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated:DeprecationWarning")
def test_markdown_reads_as_written_in_tensorboard() -> None:
    from tensorboard.plugin_util import markdown_to_safe_html

    page = markdown_to_safe_html(markdown_table(FULL))
    assert "<td>mlp 70 %,<br>wave 30 %,<br>roofline &lt;1 %</td>" in page
    assert "<td>T4 *</td>" in page
    assert page.count("<tr>") == 1 + len(FULL)
    assert "<li>* In use now: an iteration takes 47.5 ms (measured).</li>" in page
