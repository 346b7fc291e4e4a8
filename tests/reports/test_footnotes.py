from __future__ import annotations

from dataclasses import replace

from lightning_predict.reports.columns import grid
from lightning_predict.reports.footnotes import (
    bound_notes,
    in_use_note,
    is_bound_by_links,
    links_note,
    loader_note,
    total_notes,
    unknown_length_note,
)
from lightning_predict.reports.predictions import Predictions
from lightning_predict.timeline.verdict import Verdict
from tests.reports.example import H100, MINIMAL, T4


def of(*predictions: object) -> Predictions:
    return Predictions(tuple(predictions))  # type: ignore[arg-type]


def test_the_loader_is_named_where_it_takes_longer_than_the_step() -> None:
    # 48 ms a step on the T4, 6 ms on the H100, and 20 ms for the loader on either.
    slow, fast = replace(T4, loader_seconds=0.020), replace(H100, loader_seconds=0.020)
    shown = grid(of(slow, fast))
    column = [one.title for one in shown.columns].index("bound by")
    assert [row[column] for row in shown.rows] == ["device", "loader"]
    (note,) = loader_note(of(slow, fast))
    assert note.startswith("Bound by loader: it takes 20.0 ms for the batches of an iteration on any GPU")
    assert list(loader_note(of(slow))) == []


def test_the_gpu_in_use_is_shown_with_what_would_have_been_predicted() -> None:
    used = Predictions((replace(T4, unmeasured_seconds=0.0380),), used_gpu="T4")
    assert list(in_use_note(used)) == [
        "* In use now: an iteration takes 47.5 ms (measured); without that, 38.0 ms would be predicted (-20 %)."
    ]


def test_what_a_faster_gpu_gains_is_said_where_the_host_is_the_limit() -> None:
    host = Verdict(bound_by="host", idle_share=0.3, gain=0.042, critical_path={})
    device = Verdict(bound_by="device", idle_share=0.0, gain=0.5, critical_path={})
    fast, slow = replace(H100, verdict=host), replace(T4, verdict=device)
    stuck = replace(fast, gpu="B200-SXM-180GB", verdict=replace(host, gain=0.0))
    twin = replace(stuck, gpu="H200-SXM-141GB")
    assert list(bound_notes(of(slow, fast, stuck, twin))) == [
        "Bound by host: it cannot launch faster, so a GPU twice as fast gains 0 % (B200-SXM-180GB, H200-SXM-141GB), "
        "4 % (H100-SXM-80GB)."
    ]
    assert list(bound_notes(of(slow))) == []
    (note,) = bound_notes(of(replace(fast, loader_seconds=1.0)))  # then the host is not the limit
    assert note.startswith("Bound by loader")


def test_checkpoints_are_mentioned_where_they_count() -> None:
    # 11,520 s in all: 1 % are 115.2 s.
    assert list(total_notes(of(replace(T4, checkpoint_seconds=100.0)))) == []
    (note,) = total_notes(of(replace(T4, checkpoint_seconds=120.0, checkpoint_is_estimated=True)))
    assert note == "Total: 2 min for checkpoints, estimated from their size."
    (note,) = total_notes(of(replace(T4, checkpoint_seconds=120.0)))
    assert note == "Total: 2 min for checkpoints."


def test_an_unknown_length_has_the_time_of_steps_and_epochs() -> None:
    unknown = replace(MINIMAL, cycle_seconds=0.025, epoch_seconds=90.0)
    assert list(unknown_length_note(of(unknown))) == [
        "The length of this run is not known. 1,000 steps of training take: L4 25.0 s.",
        "An epoch of training takes: L4 1 min 30 s.",
    ]
    assert list(unknown_length_note(of(replace(unknown, epoch_seconds=None)))) == [
        "The length of this run is not known. 1,000 steps of training take: L4 25.0 s."
    ]
    assert list(unknown_length_note(of(T4, MINIMAL))) == []


def test_several_gpus_say_what_they_wait_for_and_what_they_work_through() -> None:
    alone = replace(MINIMAL, iteration_seconds=0.4)
    four = replace(MINIMAL, gpu="4xT4", iteration_seconds=0.5, added_seconds=0.1, num_gpus=4)
    eight = replace(MINIMAL, gpu="8xT4", iteration_seconds=1.0, added_seconds=0.6, num_gpus=8)
    notes = list(links_note(of(alone, four, eight)))
    assert notes[0] == "Several GPUs: of an iteration, they wait for each other 20 % (4xT4), 60 % (8xT4)."
    assert "each copy of the model takes as many samples" in notes[1]
    assert [is_bound_by_links(one) for one in (alone, four, eight)] == [False, False, True]
    assert list(links_note(of(alone))) == []
