"""The largest batch by bisection, by hand and by what must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import lightning_predict as lp
from lightning_predict.advice.batch_size import BatchSizes, with_samples
from lightning_predict.advice.largest_batch import AffineMemory, ScaledMemory, largest_batches
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.units import GIBIBYTE, MEBIBYTE
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import layout_of, layouts_of
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.memory.step_memory import step_memory, total_bytes
from lightning_predict.record.trace import Memory, Operation, Parameter, TensorInfo, Trace
from tests.advice.example_steps import trained


def kept(samples: int = 4) -> Trace:
    """A step of a weight of 1 GiB whose every sample keeps 100 MiB."""
    data = TensorInfo((samples, 1), "uint8", id=0)
    weight, gradient = (TensorInfo((1024, MEBIBYTE), "uint8", id=number) for number in (1, 3))
    hidden = TensorInfo((samples, 100, MEBIBYTE), "uint8", id=2)
    return Trace(
        operations=(
            Operation(name="aten::mul", phase="forward", inputs=(data, weight), outputs=(hidden,)),
            Operation(name="aten::mul", phase="backward", inputs=(hidden,), outputs=(gradient,)),
            Operation(name="aten::add_", phase="optimizer", inputs=(weight, gradient), outputs=(weight,)),
        ),
        device="meta",
        recorder="dispatch",
        parameters=(Parameter(name="weight", shape=(1024, MEBIBYTE), dtype="uint8"),),
        memory=Memory(parameter_bytes=GIBIBYTE, gradient_bytes=GIBIBYTE, forward_gradient_bytes=0),
        held=(3,),
        samples=samples,
    )


def test_what_fits_as_predicted_is_what_the_card_has_over_what_a_sample_takes() -> None:
    (found,) = largest_batches(kept(), [layout_of("L4")])
    # Weight, gradient and hidden; 2 MiB hold the batches, cuBLAS has two workspaces of 8.125 MiB. An L4's 24 GiB, less
    # ECC and the driver (1/16, 3 %), less 800 MiB of context.
    spare = 24 * 1024 * (15 / 16) * 0.97 - 800 - 2 - 2 * 8.125 - 2 * 1024
    assert found.batch_size_at_50_percent is not None
    assert found.batch_size_at_50_percent == pytest.approx(spare / 100, rel=1 / 64)
    assert found.batch_size is not None
    assert found.batch_size < found.batch_size_at_50_percent


def test_the_chance_is_at_least_97_percent_there_and_less_a_little_further() -> None:
    scaled = ScaledMemory(kept())
    for layout in layouts_of(["T4", "L4", "H100-SXM-80GB"]):
        (found,) = largest_batches(kept(), [layout])
        assert found.batch_size is not None
        further = found.batch_size + max(found.batch_size // 64, 1)
        chances = [scaled.need(size, layout, Strategy()).fit_probability or 0 for size in (found.batch_size, further)]
        assert chances[0] >= 0.97 > chances[1]
        assert found.fit_probability == chances[0]


@pytest.mark.parametrize("recorded", [1, 3, 4, 500])
def test_it_is_the_same_whatever_was_recorded(recorded: int) -> None:
    """Up to a part in 64 each."""
    one, other = (largest_batches(kept(size), [layout_of("L4")])[0].batch_size for size in (4, recorded))
    assert one == pytest.approx(other, rel=2 / 64)


def test_a_larger_card_takes_no_fewer() -> None:
    found = [one.batch_size or 0 for one in largest_batches(kept(), layouts_of(["T4", "L4", "L40S", "H200"]))]
    assert found == sorted(found)
    assert found[0] > 0


def test_of_several_gpus_the_fullest_counts() -> None:
    """DDP's buckets are as large as all gradients, 1 GiB: about ten samples of 100 MiB less."""
    alone, several = (one.batch_size_at_50_percent or 0 for one in largest_batches(kept(), layouts_of(["L4", "2xL4"])))
    assert alone - several == pytest.approx(1024 / 100, abs=alone / 64 + 1)


def test_where_the_model_alone_is_too_large_not_even_one_sample_fits() -> None:
    huge = replace(kept(), memory=replace(kept().memory, optimizer_state_bytes=100 * GIBIBYTE))
    (found,) = largest_batches(huge, [layout_of("L4")])
    assert found.batch_size is None
    assert found.batch_size_at_50_percent is None
    assert found.sentence == "Largest batch on the L4: not even one sample fits with a chance of 97%."


def test_the_sentence_gives_both_sizes() -> None:
    (found,) = largest_batches(kept(), [layout_of("L4")])
    assert found.sentence.startswith(f"Largest batch on the L4: {found.batch_size} samples (9")
    assert found.sentence.endswith(f"{found.batch_size_at_50_percent} have an even chance.")


def test_a_measured_peak_corrects_all_batches() -> None:
    derived = step_memory(kept())
    assert derived is not None
    own = derived.persistent_bytes + derived.temporary_bytes + derived.slack_bytes
    measured = replace(kept(), memory=replace(kept().memory, reserved_bytes=round(1.2 * own)))
    one, other = (largest_batches(trace, [layout_of("L4")])[0].memory_bytes or 0 for trace in (kept(), measured))
    # Both fill the same card, the measured one with fewer samples.
    assert one == pytest.approx(other, rel=0.03)
    sizes = [largest_batches(trace, [layout_of("L4")])[0].batch_size or 0 for trace in (kept(), measured)]
    assert sizes[1] < sizes[0] / 1.15


def test_data_that_no_dimension_of_is_the_samples_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="The first dimension of the data must be the samples"):
        largest_batches(replace(kept(), samples=7), [layout_of("L4")])


def test_a_step_without_a_model_or_tensors_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be told: the recorder saw no model"):
        largest_batches(replace(kept(), memory=Memory()), [layout_of("L4")])
    with pytest.raises(InvalidArgumentError, match="how many samples a step holds is not known"):
        largest_batches(replace(kept(), samples=None), [layout_of("L4")])


def test_a_scaled_step_needs_what_a_captured_one_does() -> None:
    recorded, captured = trained(512), trained(1536)
    scaled = with_samples(recorded, 1536)
    assert step_memory(scaled) == step_memory(captured)
    shapes = [[tensor.shape for tensor in (*one.inputs, *one.outputs)] for one in captured.operations]
    assert [[tensor.shape for tensor in (*one.inputs, *one.outputs)] for one in scaled.operations] == shapes


def test_tensors_never_shrink_as_the_batch_grows() -> None:
    scaled, card = ScaledMemory(trained(64)), gpu("L4")
    needs = [scaled.at(size)[0][1].allocated_on(card) for size in (1, 2, 63, 64, 65, 700, 5000)]
    assert needs == sorted(needs)
    assert all(0 < need < total_bytes(card) for need in needs[:3])


def with_kept_gradients(trace: Trace) -> Trace:
    """The step with an optimizer that keeps its gradients, so that they are added to."""
    return replace(trace, software={"torch": "1.9"})


@pytest.mark.parametrize("make", [lambda: trained(64), lambda: with_kept_gradients(trained(64)), kept])
def test_affine_sizes_give_the_memory_of_a_scaled_step(make: Callable[[], Trace]) -> None:
    trace = make()
    scaled = ScaledMemory(trace)
    for size in (1, 2, 63, 65, 128, 700, 5000):
        ((_, found),) = scaled.alone(size)
        expected = step_memory(with_samples(trace, size))
        assert found == expected
        assert expected is not None
        assert found.releasable_bytes == expected.releasable_bytes


def test_affine_sizes_of_language_models_give_the_memory_of_a_scaled_step() -> None:
    trace = lp.Trace.load("examples/lora.json.gz")
    ((_, found),) = ScaledMemory(trace).alone(3)
    assert found == step_memory(with_samples(trace, 3))


def test_a_step_with_convolutions_is_scaled() -> None:
    trace = lp.Trace.load("examples/resnet.json.gz")
    assert AffineMemory.of(BatchSizes(trace), trace.samples or 1) is None
    scaled = ScaledMemory(trace)
    assert scaled.alone(2)[0][1] == scaled.at(2)[0][1] == step_memory(with_samples(trace, 2))
