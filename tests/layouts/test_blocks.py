"""Modules that are transformer blocks, and the properties derived from their operations."""

from dataclasses import replace

import pytest
import torch

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.layouts.tensor_parallel import (
    TransformerBlock,
    block_of,
    find_blocks,
    numbered_modules,
    positions_of,
)
from lightning_predict.record.trace import Operation, TensorInfo, Trace
from tests.layouts.example_blocks import HEADS, HIDDEN, STREAM_BYTES, TOKENS, block, trace_of
from tests.workloads.catalogue import WORKLOADS
from tests.workloads.test_workloads import step_of


def renamed(trace: Trace, names: dict[str, str]) -> Trace:
    def module(operation: Operation) -> str | None:
        for old, new in names.items():
            if operation.module is not None and operation.module.startswith(old):
                return new + operation.module.removeprefix(old)
        return operation.module

    return replace(trace, operations=tuple(replace(each, module=module(each)) for each in trace.operations))


def names_of(trace: Trace) -> list[str]:
    return [found.name for found in find_blocks(trace)]


def test_block_by_hand() -> None:
    trace, _ = trace_of(3)
    blocks = find_blocks(trace)
    assert [each.name for each in blocks] == ["blocks.0", "blocks.1", "blocks.2"]
    first = blocks[0]
    assert (first.hidden, first.tokens, first.heads, first.kv_heads) == (HIDDEN, TOKENS, HEADS, HEADS)
    assert first.weights == first.parameters == frozenset({(3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN)})
    # The projection after attention leads back to the stream; the one before it does not.
    assert list(first.reduced_bytes) == [STREAM_BYTES]
    assert first.stream_bytes == STREAM_BYTES


def captured(name: str) -> tuple[TransformerBlock, ...]:
    workload = WORKLOADS[name]
    with torch.device("meta"):
        module, batch = workload.module("tiny"), workload.batch("tiny")
    return find_blocks(lp.capture(step_of(module, batch), warmup_steps=0))


@pytest.mark.parametrize(
    ("name", "names", "kv_heads"),
    [
        ("gpt2", ["blocks.0", "blocks.1"], 4),  # attention written out, weights of 3 x 32 and 4 x 32
        ("bert_large", ["layers.0", "layers.1"], 4),  # three projections, an additive mask
        ("llama", ["layers.0", "layers.1"], 2),  # grouped heads, RMS norms, three layers in the perceptron
        ("vit", ["layers.0", "layers.1"], 4),
    ],
)
def test_blocks_of_recorded_models(name: str, names: list[str], kv_heads: int) -> None:
    blocks = captured(name)
    assert [each.name for each in blocks] == names
    for each in blocks:
        assert (each.hidden, each.heads, each.kv_heads) == (32, 4, kv_heads)
        # Attention and the perceptron each lead back once, with the whole stream in float32.
        stream = each.tokens * 32 * 4
        assert list(each.reduced_bytes) == [stream, stream]
        assert each.stream_bytes == stream


def test_blocks_need_no_siblings_and_decoders_have_three_all_reduces() -> None:
    encoder, decoder = captured("transformer")
    assert (encoder.name, decoder.name) == ("encoder.0", "decoder.0")
    assert (len(encoder.reduced_bytes), len(decoder.reduced_bytes)) == (2, 3)
    assert (encoder.heads, decoder.heads) == (4, 4)
    first, second = (
        renamed(trace_of(blocks)[0], {"blocks": name}) for blocks, name in ((2, "encoder"), (1, "1.decoder"))
    )
    both = replace(first, operations=(*first.operations, *second.operations))
    assert names_of(both) == ["encoder.0", "encoder.1", "1.decoder.0"]
    trace, _ = trace_of(3)
    wider = Operation(
        name="aten::mm",
        phase="forward",
        inputs=(TensorInfo((TOKENS, HIDDEN), "float32"), TensorInfo((HIDDEN, 4 * HIDDEN), "float32")),
        module="blocks.0.perceptron",
    )
    assert len(find_blocks(replace(trace, operations=(wider, *trace.operations)))) == 3


@pytest.mark.parametrize(
    ("blocks", "prefix", "names"), [(2, "1.layers", ["1.layers.0", "1.layers.1"]), (1, "0.layers", ["0.layers.0"])]
)
def test_module_that_contains_blocks_is_not_a_block(blocks: int, prefix: str, names: list[str]) -> None:
    assert names_of(renamed(trace_of(blocks)[0], {"blocks": prefix})) == names


def test_heads_of_unfused_attention() -> None:
    # Rows of scores are samples x heads x queries: 4 x 8 x 256, over 4 x 256 tokens.
    scores, values = TensorInfo((32, 256, 256), "float32"), TensorInfo((32, 256, 128), "float32")
    calls = (
        ("aten::bmm", (values, TensorInfo((32, 128, 256), "float32"))),
        ("aten::_softmax", (scores,)),
        ("aten::bmm", (scores, values)),
    )
    unfused = [
        Operation(name=name, phase="forward", inputs=inputs, module="blocks.0.attention") for name, inputs in calls
    ]
    fused = [operation for operation, _ in block("blocks.0")]
    (layer,) = find_blocks(Trace(operations=(*fused[:2], *unfused, fused[3]), device="cpu", recorder="dispatch"))
    assert (layer.heads, layer.kv_heads, len(layer.reduced_bytes)) == (8, 8, 1)


def test_model_without_attention_is_refused() -> None:
    trace, _ = trace_of(2)
    routed = tuple(  # a softmax that is not attention
        replace(each, name="aten::_softmax", inputs=each.inputs[:1]) if "attention" in each.name else each
        for each in trace.operations
    )
    with pytest.raises(InvalidArgumentError, match="no numbered module"):
        find_blocks(replace(trace, operations=routed))
    data = TensorInfo((4, 4), "float32")
    matmul = Operation(name="aten::mm", phase="forward", inputs=(data, data), module="layers.0")
    with pytest.raises(
        InvalidArgumentError,
        match=r"holds none: no numbered module \(such as 'layers.0'\) of the 1 that it names has attention.*"
        "leave out tensor and pipeline",
    ):
        find_blocks(Trace(operations=(matmul,), device="cpu", recorder="dispatch"))


@pytest.mark.parametrize(
    ("module", "position"), [("blocks.1.attention.output", 1), ("blocks.1", 1), ("blocks.10.norm", None), (None, None)]
)
def test_block_of_a_module(module: str | None, position: int | None) -> None:
    assert block_of(module, positions_of(find_blocks(trace_of(2)[0]))) == position
    assert list(numbered_modules("1.layers.3.norm")) == ["1", "1.layers.3"]
    assert list(numbered_modules("head")) == []
