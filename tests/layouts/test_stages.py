"""What each stage holds and runs, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_predict.hardware import gpu
from lightning_predict.layouts.model_parallel import Stage, model_stages, stage_parameters
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.layouts.tensor_parallel import split_model
from lightning_predict.record.trace import Operation, Parameter, Trace
from lightning_predict.timeline.host import HostModel
from tests.layouts.example_blocks import (
    HIDDEN,
    MODELS,
    ROWS,
    STREAM,
    STREAM_BYTES,
    TOKENS,
    matrix,
    timed_as,
    trace_of,
)
from tests.layouts.test_tensor_parallel import LOOK_UP, VOCABULARY

A100 = gpu("A100-SXM-80GB")


def speaking(blocks: int) -> tuple[Trace, list[float]]:
    """With an embedding of 0.2 s in front, and a norm and an output layer of 0.1 and 2 s behind."""
    trace, seconds = trace_of(blocks)
    norm = Operation(name="aten::native_layer_norm", phase="forward", inputs=(STREAM,), module="norm")
    head = Operation(name="aten::mm", phase="forward", inputs=(ROWS, matrix(HIDDEN, VOCABULARY)), module="head")
    forward = 4 * blocks
    tokens, head_weight = (
        Parameter(name=f"{name}.weight", shape=(VOCABULARY, HIDDEN), dtype="float32") for name in ("tokens", "head")
    )
    return (
        replace(
            trace,
            operations=(LOOK_UP, *trace.operations[:forward], norm, head, *trace.operations[forward:]),
            parameters=(
                tokens,
                *trace.parameters,
                Parameter(name="norm.weight", shape=(HIDDEN,), dtype="float32"),
                head_weight,
            ),
        ),
        [0.2, *seconds[:forward], 0.1, 2.0, *seconds[forward:]],
    )


def stages(strategy: Strategy, blocks: int = 2) -> tuple[Stage, ...]:
    trace, seconds = speaking(blocks)
    return model_stages(trace, timed_as(trace, seconds), [A100], HostModel(), MODELS, strategy)


def test_the_embedding_is_the_first_stages_and_the_head_the_last_ones() -> None:
    trace, _ = speaking(2)
    first, last = stage_parameters(trace, split_model(trace), Strategy(tensor=4, pipeline=2))
    # Matrices in quarters, for any side; vectors whole.
    assert [(each.name, each.shape) for each in first] == [
        ("tokens.weight", (VOCABULARY // 4, HIDDEN)),
        ("blocks.0.attention.project.weight", (3 * HIDDEN // 4, HIDDEN)),
        ("blocks.0.attention.output.weight", (HIDDEN // 4, HIDDEN)),
    ]
    assert [(each.name, each.shape) for each in last[2:]] == [
        ("norm.weight", (HIDDEN,)),
        ("head.weight", (VOCABULARY // 4, HIDDEN)),
    ]


def test_each_stage_runs_its_blocks_and_what_is_beside_them() -> None:
    first, last = stages(Strategy(pipeline=2, micro_batches=1))
    assert first.passes.active_seconds[0] == pytest.approx(0.2 + 7.3, rel=1e-6)
    assert last.passes.active_seconds[0] == pytest.approx(7.3 + 0.1 + 2.0, rel=1e-6)
    # A table and a block are half of all parameters, and take half of the update.
    assert last.whole.active_seconds[0] - last.passes.active_seconds[0] == pytest.approx(0.25, rel=1e-3)
    assert (first.sent_tensors, last.sent_tensors) == (1, 1)
    assert first.stream_bytes == STREAM_BYTES


def test_a_stage_in_the_middle_hands_over_both_ways() -> None:
    assert [stage.sent_tensors for stage in stages(Strategy(pipeline=3), blocks=3)] == [1, 2, 1]


def test_all_reduces_of_each_stage() -> None:
    # Of a block one forward and one backward; of the embedding one; of the head's input one, and three numbers a token.
    (whole,) = stages(Strategy(tensor=2))
    assert sorted(whole.reduced_bytes) == [3 * TOKENS * 4, *[STREAM_BYTES] * 6]
    first, last = stages(Strategy(tensor=2, pipeline=2, micro_batches=4))
    assert list(first.reduced_bytes) == [STREAM_BYTES / 4] * 3
    assert sorted(last.reduced_bytes) == [3 * TOKENS, *[STREAM_BYTES / 4] * 3]
    assert stages(Strategy(pipeline=2))[0].reduced_bytes == ()


def test_what_is_assumed_is_said() -> None:
    (whole,) = stages(Strategy(tensor=2))
    assert len(whole.notes) == 1
    assert "Together they take as many samples as were recorded" in whole.notes[0]
    assert stages(Strategy(micro_batches=4))[0].notes == (
        "The recorded batch is split into 4 sequential micro-batches.",
    )
    both = stages(Strategy(tensor=2, pipeline=2, micro_batches=4))
    assert all("equal stages wait for 20 % of the passes' time" in stage.notes[1] for stage in both)
