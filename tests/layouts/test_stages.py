"""Parameters, work, messages and notes of each pipeline stage, by hand."""

from dataclasses import replace

import pytest

from lightning_predict.layouts.model_parallel import Stage, model_stages, stage_parameters
from lightning_predict.layouts.strategy import Strategy, parse_strategy
from lightning_predict.layouts.tensor_parallel import split_model
from lightning_predict.record.trace import Operation, Parameter, Trace
from lightning_predict.timeline.host import HostModel
from tests.layouts.example_blocks import (
    A100,
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


def language_model(blocks: int) -> tuple[Trace, list[float]]:
    """Add an embedding of 0.2 s before the blocks, and a norm and an output layer of 0.1 and 2 s after them."""
    trace, seconds = trace_of(blocks)
    norm = Operation(name="aten::native_layer_norm", phase="forward", inputs=(STREAM,), module="norm")
    head = Operation(name="aten::mm", phase="forward", inputs=(ROWS, matrix(HIDDEN, VOCABULARY)), module="head")
    forward = 4 * blocks
    tokens, norm_weight, head_weight = (
        Parameter(name=f"{name}.weight", shape=shape, dtype="float32")
        for name, shape in (("tokens", (VOCABULARY, HIDDEN)), ("norm", (HIDDEN,)), ("head", (VOCABULARY, HIDDEN)))
    )
    operations = (LOOK_UP, *trace.operations[:forward], norm, head, *trace.operations[forward:])
    parameters = (tokens, *trace.parameters, norm_weight, head_weight)
    return (
        replace(trace, operations=operations, parameters=parameters),
        [0.2, *seconds[:forward], 0.1, 2.0, *seconds[forward:]],
    )


def stages(words: str, blocks: int = 2) -> tuple[Stage, ...]:
    trace, seconds = language_model(blocks)
    return model_stages(trace, timed_as(trace, seconds), [A100], HostModel(), MODELS, parse_strategy(words))


def test_embedding_blocks_and_head_run_in_their_stages() -> None:
    trace, _ = language_model(2)
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
    head, tail = stages("pipeline=2,micro_batches=1")
    assert head.passes.active_seconds[0] == pytest.approx(0.2 + 7.3, rel=1e-6)
    assert tail.passes.active_seconds[0] == pytest.approx(7.3 + 0.1 + 2.0, rel=1e-6)
    # A table and a block are half of all parameters, and take half of the update.
    assert tail.whole.active_seconds[0] - tail.passes.active_seconds[0] == pytest.approx(0.25, rel=1e-3)
    assert (head.sent_tensors, tail.sent_tensors) == (1, 1)
    assert head.stream_bytes == STREAM_BYTES
    assert [stage.sent_tensors for stage in stages("pipeline=3", blocks=3)] == [1, 2, 1]  # in the middle both ways


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        # Of a block one forward and one backward; of the embedding one; of the head's input one, and three numbers a
        # token.
        ("tensor=2", [[3 * TOKENS * 4, *[STREAM_BYTES] * 6]]),
        ("tensor=2,pipeline=2,micro_batches=4", [[STREAM_BYTES / 4] * 3, [3 * TOKENS, *[STREAM_BYTES / 4] * 3]]),
        ("pipeline=2", [[], []]),
    ],
)
def test_all_reduces_of_each_stage(words: str, messages: list[list[float]]) -> None:
    assert [sorted(stage.reduced_bytes) for stage in stages(words)] == messages


def test_notes_name_assumptions() -> None:
    (whole,) = stages("tensor=2")
    assert len(whole.notes) == 1
    assert "Together they take as many samples as were recorded" in whole.notes[0]
    assert stages("micro_batches=4")[0].notes == ("The recorded batch is split into 4 sequential micro-batches.",)
    both = stages("tensor=2,pipeline=2,micro_batches=4")
    assert all("equal stages wait for 20 % of the passes' time" in stage.notes[1] for stage in both)
