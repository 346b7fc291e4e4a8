"""Recording on the CPU and the meta device: the recorded calls, their names, and that nothing else changes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

import lightning_predict as lp
from lightning_predict.record.dispatch import DispatchRecorder
from lightning_predict.record.trace import Operation
from tests.record.workloads import mixed_step, names, perceptron_step


def record(step: Callable[[], object], model: nn.Module | None = None) -> DispatchRecorder:
    """One recorded run of a step."""
    recorder = DispatchRecorder(model)
    recorder.start()
    try:
        step()
    finally:
        recorder.stop()
    assert recorder.failure is None, recorder.failure
    return recorder


def operations_of(step: Callable[[], object]) -> list[Operation]:
    return record(step).operations


def test_linear_layer_is_recorded_in_both_passes() -> None:
    layer = nn.Linear(8, 4)
    data = torch.zeros(2, 8)
    operations = operations_of(lambda: layer(data).sum().backward())
    forward = next(operation for operation in operations if operation.name == "aten::addmm")
    # addmm(bias, data, weight^T)
    assert [tensor.shape for tensor in forward.inputs] == [(4,), (2, 8), (8, 4)]
    assert [tensor.shape for tensor in forward.outputs] == [(2, 4)]
    assert forward.arguments == {"beta": 1, "alpha": 1, "second_transposed": True}
    assert {tensor.device for tensor in forward.inputs} == {"cpu"}
    # The gradient to the weight alone, (4, 2) x (2, 8): the data needs none.
    backward = [operation for operation in operations if operation.name == "aten::mm"]
    assert [(operation.phase, [t.shape for t in operation.inputs]) for operation in backward] == [
        ("backward", [(4, 2), (2, 8)])
    ]


def test_views_and_in_place_results_share_a_storage_id() -> None:
    layer = nn.Linear(8, 4, bias=False)
    data = torch.zeros(2, 8)
    operations = operations_of(lambda: layer(data).relu_())
    transpose, product, relu = (o for o in operations if o.name in ("aten::t", "aten::mm", "aten::relu_"))
    weight, output = transpose.inputs[0].id, product.outputs[0].id
    assert transpose.outputs[0].id == weight
    assert [tensor.id for tensor in product.inputs] == [product.inputs[0].id, weight]
    assert len({product.inputs[0].id, weight, output}) == 3
    assert relu.inputs[0].id == relu.outputs[0].id == output


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.LSTM(4, 3, num_layers=2, bidirectional=True), "aten::lstm"),
        (nn.GRU(4, 3, batch_first=True), "aten::gru"),
        (nn.RNN(4, 3), "aten::rnn_tanh"),
        (nn.RNN(4, 3, nonlinearity="relu"), "aten::rnn_relu"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_recurrent_layer_is_one_operation_per_pass(layer: nn.RNNBase, name: str, device: str) -> None:
    layer = layer.to(device)
    data = torch.zeros(5, 2, 4, device=device, requires_grad=True)
    operations = operations_of(lambda: layer(data)[0].sum().backward())
    whole = [operation for operation in operations if operation.name.startswith(name)]
    assert names(whole) == [name, f"{name}_backward"]
    assert [operation.phase for operation in whole] == ["forward", "backward"]
    assert whole[0].arguments == {
        "has_biases": True,
        "num_layers": layer.num_layers,
        "dropout": 0.0,
        "train": True,
        "bidirectional": layer.bidirectional,
        "batch_first": layer.batch_first,
    }
    # Input, hidden state (two for the LSTM), and four tensors a layer and direction.
    directions = 2 if layer.bidirectional else 1
    states = 2 if name == "aten::lstm" else 1
    assert len(whole[0].inputs) == 1 + states + 4 * layer.num_layers * directions
    assert whole[0].inputs == whole[1].inputs
    parts = {"aten::mm", "aten::addmm", "aten::sigmoid", "aten::mkldnn_rnn_layer", "aten::tanh"}
    assert parts.isdisjoint(names(operations))


def test_packed_sequences_are_marked_and_rms_norm_is_one_operation() -> None:
    layer = nn.GRU(4, 3)
    packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(5, 2, 4), torch.tensor([5, 3]))
    whole = [o for o in operations_of(lambda: layer(packed)) if o.name == "aten::gru"]
    assert whole[0].arguments["packed"] is True
    assert whole[0].inputs[0].shape == (8, 4)  # 5 + 3 steps
    assert whole[0].inputs[1].shape == (5,)
    norm = nn.RMSNorm(8)
    whole = [o for o in operations_of(lambda: norm(torch.zeros(2, 8)).sum().backward()) if "rms" in o.name]
    assert names(whole) == ["aten::_fused_rms_norm", "aten::_fused_rms_norm_backward"]
    assert whole[0].arguments == {"normalized_shape": [8]}
    assert [tensor.shape for tensor in whole[0].inputs] == [(2, 8), (8,)]
    assert [tensor.shape for tensor in whole[1].inputs] == [(2, 8), (2, 8), (8,)]  # with the gradient


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_is_one_operation_with_arguments(device: str) -> None:
    query = torch.zeros(2, 4, 6, 8, device=device, requires_grad=True)
    key = torch.zeros(2, 2, 6, 8, device=device, requires_grad=True)
    mask = torch.ones(6, 6, dtype=torch.bool, device=device)

    def step() -> None:
        attend = functional.scaled_dot_product_attention
        attend(query, key, key, is_causal=True, scale=0.5, enable_gqa=True).sum().backward()
        attend(query, query, query, mask, dropout_p=0.0).sum().backward()

    whole = [o for o in operations_of(step) if "attention" in o.name]
    assert names(whole) == ["aten::scaled_dot_product_attention", "aten::scaled_dot_product_attention_backward"] * 2
    grouped, masked = whole[0], whole[2]
    assert grouped.arguments == {
        "dropout_p": 0.0,
        "is_causal": True,
        "scale": 0.5,
        "enable_gqa": True,
        "attn_mask": False,
    }
    assert [tensor.shape for tensor in grouped.inputs] == [(2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8)]
    assert (masked.arguments["attn_mask"], masked.arguments["mask_stride"]) == (True, 1)
    assert masked.inputs[3].dtype == "bool"
    assert (whole[1].arguments, whole[1].inputs) == (grouped.arguments, grouped.inputs)


def test_attention_and_projections_inside_torch_functions_are_recorded() -> None:
    original = functional.scaled_dot_product_attention
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    data = torch.randn(2, 3, 8)
    expected = layer(data, data, data, need_weights=False)[0]
    results = []
    operations = operations_of(lambda: results.append(layer(data, data, data, need_weights=False)[0]))
    assert names(operations).count("aten::scaled_dot_product_attention") == 1
    assert torch.equal(results[0], expected)
    assert functional.scaled_dot_product_attention is original
    with torch.device("meta"):
        layer, data = nn.MultiheadAttention(8, 2, batch_first=True), torch.empty(2, 3, 8)
    trace = lp.capture(lambda: layer(data, data, data, need_weights=False), precision="bf16-mixed")
    (attention,) = (one for one in trace.operations if one.name == "aten::scaled_dot_product_attention")
    assert {tensor.dtype for tensor in attention.inputs} == {"bfloat16"}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_gradient_of_a_residual_around_a_whole_norm_is_added_once(device: str) -> None:
    norm, linear = (module.to(device) for module in (nn.RMSNorm(16), nn.Linear(16, 16, bias=False)))
    first = torch.empty(4, 16, device=device).requires_grad_()

    def step() -> None:
        data = first * 2
        (data + linear(norm(data))).sum().backward()

    backward = [one for one in lp.capture(step, warmup_steps=0).operations if one.phase == "backward"]
    of_norm, total = (
        next(one for one in backward if one.name == name) for name in ("aten::_fused_rms_norm_backward", "aten::add")
    )
    assert [one.name for one in backward].count("aten::add") == 1
    result = next(tensor for tensor in of_norm.outputs if tensor.shape == (4, 16))
    other = next(tensor for tensor in total.inputs if tensor != result)
    assert total.inputs == (result, other)
    assert other.id != result.id
    # The product with 2 reads the sum; the gradient of the norm alone is no longer needed
    scaled = next(one for one in backward[backward.index(total) :] if one.name == "aten::mul")
    assert scaled.inputs[0] == total.outputs[0]


def test_second_backward_pass_through_attention_is_recorded() -> None:
    query = torch.randn(1, 1, 4, 8, requires_grad=True)

    def step() -> None:
        output = functional.scaled_dot_product_attention(query, query, query)
        output.sum().backward(retain_graph=True)
        output.square().sum().backward()

    assert names(operations_of(step)).count("aten::scaled_dot_product_attention_backward") == 2


def test_recording_changes_no_weights_or_random_numbers() -> None:
    plain, watched = mixed_step("cpu", seed=3), mixed_step("cpu", seed=3)
    plain.model.perceptron.insert(1, nn.Dropout(0.3))  # type: ignore[union-attr, operator]
    watched.model.perceptron.insert(1, nn.Dropout(0.3))  # type: ignore[union-attr, operator]
    states = []
    for training in (plain, watched):
        torch.manual_seed(11)
        for index in range(50):
            if training is watched and index == 5:
                record(training)
            else:
                training()
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    pairs = zip(plain.model.parameters(), watched.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_clipping_and_averaging_have_the_right_phases() -> None:
    step = perceptron_step(clip=True)
    average = [parameter.detach().clone() for parameter in step.model.parameters()]

    def whole() -> None:
        step().item()
        with torch.no_grad():
            for kept, parameter in zip(average, step.model.parameters(), strict=True):
                kept.lerp_(parameter, 0.1)

    step()
    operations = operations_of(whole)
    assert {"aten::addmm", "aten::relu"} <= set(names(operations, "forward"))
    assert "aten::linalg_vector_norm" not in names(operations, "forward")
    assert names(operations, "optimizer")[0] in ("aten::_foreach_norm", "aten::linalg_vector_norm")
    assert "aten::addcdiv_" in names(operations, "optimizer")
    assert names(operations, "other").count("aten::lerp_") == len(average)
    order = [phase for phase in ("forward", "backward", "optimizer", "other") if names(operations, phase)]
    first = {phase: next(i for i, o in enumerate(operations) if o.phase == phase) for phase in order}
    assert first["forward"] < first["backward"] < first["optimizer"] < first["other"]


def test_closure_of_an_optimizer_has_the_right_phases() -> None:
    step = perceptron_step()

    def closure() -> Tensor:
        step.optimizer.zero_grad()
        with torch.no_grad():
            step.data.abs().max()  # a metric
        loss: Tensor = step.model(step.data).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(step.model.parameters(), 1.0)
        return loss

    step.optimizer.step(closure)
    recorder = record(lambda: step.optimizer.step(closure))
    operations = recorder.operations
    assert names(operations, "forward")[:2] == ["aten::abs", "aten::max"]
    assert names(operations, "forward").count("aten::addmm") == 2
    assert names(operations, "backward").count("aten::mm") == 3
    assert "aten::lerp_" in names(operations, "optimizer")
    assert "aten::addmm" not in names(operations, "optimizer")
    assert (recorder.optimizers.steps, recorder.optimizers.optimizers) == (1, [step.optimizer])


def test_two_optimizers_have_the_right_phases() -> None:
    generator, critic = perceptron_step(seed=1), perceptron_step(seed=2)
    critic_model = nn.Linear(4, 1)
    critic_optimizer = torch.optim.AdamW(critic_model.parameters())

    def step() -> None:
        critic_model(generator.model(critic.data)).sum().backward()
        generator.optimizer.step()
        with torch.no_grad():
            fake = generator.model(critic.data)
        critic_optimizer.zero_grad()
        critic_model(fake).sum().backward()
        critic_optimizer.step()

    step()
    recorder = record(step)
    products = [o.phase for o in recorder.operations if o.name == "aten::addmm"]
    assert products == ["forward"] * 6  # three, two without gradients, one
    assert recorder.optimizers.steps == 2
    assert recorder.optimizers.optimizers == [generator.optimizer, critic_optimizer]


def test_accumulation_and_zeroing_have_the_right_phases() -> None:
    step = perceptron_step()

    def window() -> None:
        for _ in range(2):
            step.model(step.data).sum().backward()
        step.optimizer.step()
        step.optimizer.zero_grad(set_to_none=False)

    window()
    operations = operations_of(window)
    assert names(operations, "forward").count("aten::addmm") == 4
    assert names(operations, "backward").count("aten::mm") == 6
    zeroing = [o for o in operations if "zero_" in o.name]
    assert zeroing
    assert {o.phase for o in zeroing} == {"other"}


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_by_checkpointing_is_backward(use_reentrant: bool) -> None:
    block = nn.Linear(8, 8)
    query = torch.randn(1, 1, 4, 8, requires_grad=True)

    def inner(data: Tensor) -> Tensor:
        data = block(data)
        return functional.scaled_dot_product_attention(data, data, data)

    def step() -> None:
        checkpoint(inner, query, use_reentrant=use_reentrant).sum().backward()

    operations = operations_of(step)
    assert [o.phase for o in operations if o.name == "aten::addmm"] == ["forward", "backward"]
    attention = [(o.name.removeprefix("aten::scaled_dot_product_"), o.phase) for o in operations if "atten" in o.name]
    # Without re-entry the recomputation starts when the first saved tensor is asked for: inside the attention's node.
    assert sorted(attention) == [
        ("attention", "backward"),
        ("attention", "forward"),
        ("attention_backward", "backward"),
    ]


@pytest.mark.parametrize(
    ("options", "name"), [({"foreach": True}, "aten::_foreach_addcdiv_"), ({"fused": True}, "aten::_fused_adamw_")]
)
def test_foreach_and_fused_updates_list_every_parameter(options: dict[str, Any], name: str) -> None:
    step = perceptron_step(**options)
    step()
    update = next(o for o in operations_of(step) if o.name == name)
    assert update.phase == "optimizer"
    # Two layers have four parameters: addcdiv_ reads three lists of them, adamw_ five (with the step counts).
    shapes = [tensor.shape for tensor in update.inputs]
    assert shapes[:4] == [(16, 8), (16,), (4, 16), (4,)]
    assert len(shapes) == 4 * (3 if name.endswith("addcdiv_") else 5)


def test_operations_have_their_module_in_both_passes() -> None:
    step = perceptron_step()
    operations = record(step, step.model).operations
    assert [o.module for o in operations if o.name == "aten::addmm"] == ["0", "3"]
    # Backward: the last layer gives its weight's and its input's gradient, the first its weight's alone.
    assert [o.module for o in operations if o.name == "aten::mm"] == ["3", "3", "0"]
    assert [o.module for o in operations if o.name == "aten::threshold_backward"] == ["1"]


def test_custom_operator_is_recorded_by_name() -> None:
    @torch.library.custom_op("lightning_predict_tests::twice", mutates_args=())
    def twice(data: Tensor) -> Tensor:
        return data * 2

    operations = operations_of(lambda: twice(torch.zeros(3)))
    assert names(operations)[-1] == "lightning_predict_tests::twice"


def test_composites_are_decomposed_in_inference_mode() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4))
    data = torch.randn(2, 8)
    results = []

    def infer() -> None:
        with torch.inference_mode():
            results.append(model(data))

    infer()
    operations = operations_of(infer)
    assert {"aten::addmm", "aten::native_layer_norm"} <= set(names(operations))
    assert "aten::linear" not in names(operations)
    assert {o.phase for o in operations} == {"forward"}
    assert torch.equal(*results)


def test_modes_of_the_user_stay_open_at_stop() -> None:
    class UsersDispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class UsersFunction(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    recorder = DispatchRecorder()
    recorder.start()
    dispatch, function = UsersDispatch(), UsersFunction()  # type: ignore[no-untyped-call]
    with dispatch, function:
        recorder.stop()
        assert _get_current_dispatch_mode() is dispatch
        assert _get_current_function_mode() is function
    assert _get_current_dispatch_mode() is None
    assert _get_current_function_mode() is None
