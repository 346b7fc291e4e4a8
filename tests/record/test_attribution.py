"""Which calls of a profile become operations, on small profiles made up for each case."""

from typing import Any

from lightning_predict.record.attribution import FoundOperation, select_operations
from lightning_predict.record.events import read_profile
from tests.record.test_events import event

NODE = "autograd::engine::evaluate_function: "


def op(name: str, start: float, duration: float, number: int | None = None, **more: Any) -> dict[str, Any]:
    """A call of an operator, with autograd's counter where gradients are on."""
    return event(name, start, duration, number=number, **more)


def node(name: str, start: float, duration: float, number: int, tid: int = 2, thread: int = 1) -> dict[str, Any]:
    """A node that autograd runs."""
    return event(NODE + name, start, duration, tid=tid, number=number, forward_thread=thread)


def kernel(start: float, correlation: int, name: str = "k", *, tid: int = 1) -> list[dict[str, Any]]:
    """A launch and the kernel that it starts."""
    return [
        event("cudaLaunchKernel", start, 1, "cuda_runtime", tid=tid, correlation=correlation),
        event(name, start + 3, 2, "kernel", tid=99, correlation=correlation),
    ]


def select(*rows: dict[str, Any]) -> list[FoundOperation]:
    return select_operations(read_profile(list(rows), "f", step=None))


def summary(found: list[FoundOperation]) -> list[tuple[str, int]]:
    return [(item.name, len(item.work)) for item in found]


def test_composites_are_replaced_by_their_parts_unless_fused() -> None:
    selected = select(
        op("aten::conv2d", 0, 50),
        op("aten::convolution", 1, 48),
        op("aten::_convolution", 2, 46),
        op("aten::cudnn_convolution", 3, 20),
        *kernel(5, 1),
        op("aten::add_", 30, 10),
        *kernel(32, 2),
    )
    assert summary(selected) == [("aten::convolution", 2)]
    # RMS normalisation is taken apart on the CPU and fused on CUDA.
    selected = select(op("aten::_fused_rms_norm", 0, 20), op("aten::empty", 1, 2), *kernel(5, 1))
    assert summary(selected) == [("aten::_fused_rms_norm", 1)]
    parts = select(op("aten::_fused_rms_norm", 0, 20), op("aten::pow", 1, 5), op("aten::mean", 8, 5))
    assert summary(parts) == [("aten::pow", 0), ("aten::mean", 0)]
    found = select(op("aten::max", 0, 9), op("aten::maximum", 1, 5), op("aten::max", 10, 9), op("aten::empty", 11, 2))
    assert summary(found) == [("aten::maximum", 0), ("aten::max", 0)]


def test_compiled_code_has_matmuls_and_fused_kernels() -> None:
    selected = select(
        event("Torch-Compiled Region: 0/0", 0, 100),
        event("CompiledFunction", 5, 90, number=4),
        event("## Call CompiledFxGraph abc ##", 10, 80, "user_annotation"),
        op("aten::addmm", 12, 10),
        *kernel(14, 1, "gemm"),
        event("triton_poi_fused_gelu_0", 30, 10),
        *kernel(32, 2, "triton_poi_fused_gelu_0"),
        *kernel(50, 3, "triton_red_fused_norm_1"),  # launched without a mark of its own
        *kernel(60, 4, "extern_kernel"),
    )
    assert summary(selected) == [
        ("aten::addmm", 1),
        ("triton::triton_poi_fused_gelu_0", 1),
        ("triton::triton_red_fused_norm_1", 1),
        ("CompiledFunction", 1),
    ]


def test_backward_parts_are_joined_by_sequence_number() -> None:
    selected = select(
        op("aten::scaled_dot_product_attention", 0, 50, 5),
        op("aten::bmm", 5, 10, 6),
        op("aten::_softmax", 20, 10, 7),
        op("aten::bmm", 35, 10, 8),
        op("aten::sum", 60, 10, 9),
        node("SumBackward0", 100, 9, 9),
        op("aten::expand", 101, 2, tid=2),
        *(
            row
            for index, number in enumerate((8, 7, 6))
            for row in (
                node("PartBackward0", 110 + 20 * index, 15, number),
                op("aten::bmm", 111 + 20 * index, 10, tid=2),
                *kernel(112 + 20 * index, 10 + index, tid=2),
            )
        ),
        event(NODE + "torch::autograd::AccumulateGrad", 126, 3, tid=2),
        op("aten::detach", 127, 1, tid=2),
        node("LinearBackward0", 200, 9, 4),
        op("aten::mm", 201, 5, tid=2),
    )
    assert summary(selected) == [
        ("aten::scaled_dot_product_attention", 0),
        ("aten::sum", 0),
        ("aten::expand", 0),
        ("aten::scaled_dot_product_attention_backward", 3),
        ("aten::detach", 0),
        ("aten::mm", 0),
    ]
    joined = selected[3]
    assert joined.in_backward
    assert joined.call is selected[0].call
    assert joined.duration == 45


def test_call_that_autocast_repeats_with_cast_tensors_is_one_call() -> None:
    # The outer call casts the mask, so that the last node is of the cast and the others are of the inner call.
    attention = "aten::scaled_dot_product_attention"
    found = select(
        op(attention, 0, 50, 10),
        op("aten::to", 1, 5, 10),
        op(attention, 8, 40, 11),
        op("aten::bmm", 10, 5, 11),
        op("aten::_softmax", 20, 5, 12),
        op("aten::relu", 60, 5, 13),
        node("SoftmaxBackward0", 110, 9, 12),
        *kernel(112, 1, tid=2),
        node("BmmBackward0", 120, 9, 11),
        *kernel(122, 2, tid=2),
        node("ToCopyBackward0", 130, 9, 10),
        *kernel(132, 3, tid=2),
    )
    assert summary(found) == [(attention, 0), ("aten::relu", 0), (f"{attention}_backward", 3)]


def test_recomputed_forward_pass_is_not_joined() -> None:
    selected = select(
        op("aten::scaled_dot_product_attention", 0, 50, 5),
        op("aten::sum", 60, 10, 6),
        node("AttentionBackward0", 100, 80, 5),
        op("aten::addmm", 105, 10, 7, tid=2),  # gradients are on: recomputed
        *kernel(106, 1, tid=2),
        op("aten::attention_backward_kernel", 130, 10, tid=2),
        *kernel(132, 2, tid=2),
    )
    assert summary(selected)[2:] == [("aten::scaled_dot_product_attention_backward", 1), ("aten::addmm", 1)]


def test_sequence_numbers_are_separated_by_thread() -> None:
    def link(kind: str, start: float, tid: int, number: int) -> dict[str, Any]:
        return {"ph": kind, "cat": "fwdbwd", "name": "fwdbwd", "id": number, "pid": 9, "tid": tid, "ts": start}

    selected = select(
        op("aten::lstm", 0, 20, 5),
        op("aten::sum", 30, 5, 6),
        op("aten::relu", 40, 5, 5, tid=7),  # another thread counts on its own
        op("aten::sum", 50, 5, 6, tid=7),
        node("ReluBackward0", 100, 9, 5, thread=2),
        op("aten::threshold_backward", 101, 5, tid=2),
        node("LstmBackward0", 120, 9, 5, thread=1),
        op("aten::mm", 121, 5, tid=2),
        link("s", 0, 1, 1),
        link("f", 120, 2, 1),
        link("s", 40, 7, 2),
        link("f", 100, 2, 2),
    )
    assert summary(selected)[4:] == [("aten::threshold_backward", 0), ("aten::lstm_backward", 0)]


def test_last_call_with_a_sequence_number_created_the_node() -> None:
    # A copy of the batch reads autograd's counter before the product does, and takes no number.
    selected = select(
        op("aten::to", 0, 20, 7),
        op("aten::_to_copy", 1, 18, 7),
        event("cudaMemcpyAsync", 5, 1, "cuda_runtime", correlation=1),
        event("Memcpy HtoD (Pinned -> Device)", 8, 2, "gpu_memcpy", tid=99, correlation=1),
        op("aten::linear", 30, 20, 7),
        op("aten::addmm", 32, 15, 7),
        *kernel(34, 2),
        op("aten::relu", 60, 10, 8),
        *kernel(62, 3),
        node("AddmmBackward0", 100, 20, 7),
        node("ReluBackward0", 80, 10, 8),
    )
    assert [(item.name, item.builds_graph) for item in selected if not item.in_backward] == [
        ("aten::_to_copy", False),
        ("aten::addmm", True),
        ("aten::relu", True),
    ]
