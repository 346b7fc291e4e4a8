"""Steps on the meta device that once ended in torch's own words, or ran calls that a GPU rejects."""

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

import lightning_predict as lp
from lightning_predict.base.errors import CaptureError
from lightning_predict.kernels.translation import work_items
from lightning_predict.record.trace import Trace


@pytest.mark.parametrize(
    "convolve", [torch.ops.aten.conv2d, torch.ops.aten.conv2d.default], ids=["by its name", "by an overload"]
)
def test_exported_convolution_casts_bias_and_images(convolve: object) -> None:
    with torch.device("meta"):
        layers = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)]
        images = torch.empty(2, 8, 16, 16)

    def step() -> None:
        result = images
        for layer in layers:  # the second gets the first one's result, in 16 bits
            result = convolve(result, layer.weight, layer.bias, [1, 1], [1, 1])  # type: ignore[operator]
        result.float().sum().backward()

    trace = lp.capture(step, warmup_steps=0, precision="16-mixed")
    read = [operation.inputs for operation in trace.operations if operation.name == "aten::convolution"]
    assert [[tensor.dtype for tensor in inputs] for inputs in read] == [["float16"] * 3] * 2


@pytest.mark.parametrize("warmup_steps", [1, 3])
def test_16_bit_images_meet_cast_weights(warmup_steps: int) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 14 * 14, 2))
        images = torch.empty(2, 3, 16, 16, dtype=torch.float16)

    trace = lp.capture(lambda: model(images).sum().backward(), warmup_steps=warmup_steps, precision="16-mixed")
    read = [one.inputs for one in trace.operations if one.name in ("aten::convolution", "aten::addmm")]
    assert [[tensor.dtype for tensor in inputs] for inputs in read] == [["float16"] * 3] * 2


def test_operation_missing_on_meta_is_named_with_its_line() -> None:
    with torch.device("meta"):
        layer, index = nn.Linear(8, 8), torch.zeros(4, dtype=torch.long)

    def step() -> None:
        layer(torch.bincount(index)).sum().backward()

    words = (
        r"`layer\(torch\.bincount.*` \(test_meta_defects\.py, line \d+, in step\) uses an operation that torch does not"
    )
    with pytest.raises(CaptureError, match=words) as caught:
        lp.capture(step)
    assert "aten::bincount" in str(caught.value)
    assert "record on the CPU or a GPU" in str(caught.value)


@pytest.mark.parametrize("order", [1, -1])
def test_error_of_targets_on_the_cpu_names_line_and_fix(order: int) -> None:
    layer, images, boxes = nn.Linear(4, 4, device="meta"), torch.empty(2, 4, device="meta"), torch.zeros(2, 4)

    def step() -> None:
        first, second = (layer(images), boxes)[::order]
        functional.smooth_l1_loss(first, second).backward()

    words = r"smooth_l1_loss.*` \(test_meta_defects\.py, line \d+, in step\) combines a meta tensor with a tensor on"
    with pytest.raises(CaptureError, match=words) as caught:
        lp.capture(step)
    assert "targets such as boxes and labels too" in str(caught.value)


def _attention(*shape: int) -> Trace:
    with torch.device("meta"):
        query = torch.empty(*shape, dtype=torch.bfloat16, requires_grad=True)
    return lp.capture(lambda: functional.scaled_dot_product_attention(query, query, query).sum().backward())


def test_five_dimensional_attention_is_not_fused() -> None:
    # 2 images of 4 windows of 196 tokens, 3 heads of 32: torch's fused kernels take four dimensions, and refuse five.
    four, five = _attention(8, 3, 196, 32), _attention(2, 3, 4, 196, 32)
    names = [[shape.operation for item in work_items(trace) for shape in item.shapes] for trace in (four, five)]
    assert "attention" in names[0]
    assert "attention_backward" in names[0]
    assert "eager_attention" in names[1]
    assert "eager_attention_backward" in names[1]
    fused, eager = (lp.predict(trace, ["A100-SXM-80GB"])["A100-SXM-80GB"].device_seconds for trace in (four, five))
    assert eager > fused


def test_autocast_leaves_experts_in_float32() -> None:
    """Torch's CUDA kernel takes float32 and autocast casts no grouped matmul; its function for meta tensors refuses."""
    pytest.importorskip("torch", minversion="2.10")
    with torch.device("meta"):
        tokens, ends = torch.empty(64, 32, requires_grad=True), torch.empty(4, dtype=torch.int32)
        experts = torch.empty(4, 32, 16, requires_grad=True)

    def step() -> None:
        (functional.grouped_mm(tokens, experts, offs=ends) * 2).square().sum().backward()

    trace = lp.capture(step, precision="bf16-mixed")
    grouped = [operation for operation in trace.operations if operation.name == "aten::_grouped_mm"]
    assert len(grouped) == 3  # one forward, and one for each gradient
    assert {tensor.dtype for one in grouped for tensor in (*one.inputs[:2], *one.outputs)} == {"float32"}
    assert any("autocast casts none of them" in note for note in trace.notes)
