"""Largest batch by bisection: compared with a calculation by hand, and with captures of other batch sizes."""

from dataclasses import replace
from typing import Any

import pytest

import lightning_predict as lp
from lightning_predict.advice.batch_size import with_samples
from lightning_predict.advice.largest_batch import LargestBatch, ScaledMemory, largest_batch, largest_batches
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.units import GIBIBYTE, MEBIBYTE
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import layout_of
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


def largest(trace: Trace, name: str = "L4") -> LargestBatch:
    return largest_batch(ScaledMemory(trace), layout_of(name), Strategy())


def test_largest_batch_fills_the_memory_that_the_model_leaves() -> None:
    batch = largest(kept())
    # Weight, gradient and hidden; 2 MiB hold the batches, cuBLAS has two workspaces of 8.125 MiB. An L4's 24 GiB, less
    # ECC and the driver (1/16, 1.3 %), less 800 MiB of context. With an even chance, a step needs 3.3 % more than that:
    # the geometric mean of 0.89 and 1.20, as its weights are bytes, which may hold two values of 4 bits.
    spare = (24 * 1024 * (15 / 16) * 0.987 - 800) / 1.0334 - 2 - 2 * 8.125 - 2 * 1024
    assert batch.batch_size_at_50_percent == pytest.approx(spare / 100, rel=1 / 64)
    assert (batch.batch_size or 0) < (batch.batch_size_at_50_percent or 0)
    assert batch.sentence == (
        f"Largest batch on the L4: {batch.batch_size} samples ({batch.fit_probability:.0%}); "
        f"{batch.batch_size_at_50_percent} have an even chance."
    )


@pytest.mark.parametrize("name", ["T4", "L4", "H100-SXM-80GB"])
def test_probability_falls_below_90_percent_at_the_next_size(name: str) -> None:
    scaled, layout = ScaledMemory(kept()), layout_of(name)
    batch = largest(kept(), name)
    assert batch.batch_size is not None
    further = batch.batch_size + max(batch.batch_size // 64, 1)
    chances = [scaled.need(size, layout, Strategy()).fit_probability or 0 for size in (batch.batch_size, further)]
    assert chances[0] >= 0.9 > chances[1]
    assert batch.fit_probability == chances[0]


@pytest.mark.parametrize("recorded", [1, 3, 500])
def test_largest_batch_does_not_depend_on_the_recorded_batch(recorded: int) -> None:
    assert largest(kept(recorded)).batch_size == pytest.approx(largest(kept()).batch_size, rel=2 / 64)  # 1 / 64 each


def test_gradient_buckets_of_ddp_reduce_the_largest_batch() -> None:
    """DDP's buckets are as large as all gradients, 1 GiB: about ten samples of 100 MiB less."""
    alone, several = (largest(kept(), name).batch_size_at_50_percent or 0 for name in ("L4", "2xL4"))
    assert alone - several == pytest.approx(1024 / 100, abs=alone / 64 + 1)


def test_no_batch_fits_if_the_model_alone_is_too_large() -> None:
    huge = replace(kept(), memory=replace(kept().memory, optimizer_state_bytes=100 * GIBIBYTE))
    (batch,) = largest_batches(huge, ["L4"])
    assert (batch.batch_size, batch.batch_size_at_50_percent, batch.samples_per_second) == (None, None, None)
    assert batch.sentence == "Largest batch on the L4: not even one sample fits with a chance of 90%."


@pytest.mark.parametrize(
    ("safe", "even", "sentence"),
    [
        (None, 1, "none fits with a chance of 90%; 1 has an even chance."),
        (None, 3, "none fits with a chance of 90%; 3 have an even chance."),
        (1, 1, "1 sample (98%); 1 has an even chance."),
        (1, 2, "1 sample (98%); 2 have an even chance."),
    ],
)
def test_one_sample_is_singular_and_an_even_chance_contradicts_no_fit(
    safe: int | None, even: int, sentence: str
) -> None:
    batch = LargestBatch(
        gpu="L4", batch_size=safe, fit_probability=0.98, memory_bytes=None, batch_size_at_50_percent=even
    )
    assert batch.sentence == f"Largest batch on the L4: {sentence}"


@pytest.mark.parametrize("name", ["reserved_bytes", "peak_bytes"])
def test_measured_peak_corrects_all_batch_sizes(name: str) -> None:
    derived = step_memory(kept())
    assert derived is not None
    own = derived.persistent_bytes + derived.temporary_bytes + derived.slack_bytes
    plain = largest(kept())
    measured = largest(replace(kept(), memory=replace(kept().memory, **{name: round(1.2 * own)})))
    # Both fill the same card, the measured one with fewer samples.
    assert measured.memory_bytes == pytest.approx(plain.memory_bytes, rel=0.03)
    assert (measured.batch_size or 0) < (plain.batch_size or 0) / 1.15


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": 7}, "The first dimension of the data must be the samples"),
        ({"memory": Memory()}, "cannot be told: the recorder saw no model"),
        ({"samples": None}, "how many samples a step holds is not known"),
    ],
)
def test_step_that_cannot_be_scaled_is_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        largest(replace(kept(), **fields))


def test_scaled_step_equals_a_capture_of_that_size() -> None:
    recorded, captured = trained(512), trained(1536)
    scaled = with_samples(recorded, 1536)
    assert step_memory(scaled) == step_memory(captured)
    shapes = [[tensor.shape for tensor in (*operation.inputs, *operation.outputs)] for operation in captured.operations]
    assert [
        [tensor.shape for tensor in (*operation.inputs, *operation.outputs)] for operation in scaled.operations
    ] == shapes


def test_memory_never_shrinks_with_a_larger_batch() -> None:
    scaled, card = ScaledMemory(trained(64)), gpu("L4")
    needs = [scaled.at(size)[0][1].allocated_on(card) for size in (1, 2, 63, 64, 65, 700, 5000)]
    assert needs == sorted(needs)
    assert all(0 < need < total_bytes(card) for need in needs[:3])


def test_largest_batch_has_the_speed_and_cost_of_its_step() -> None:
    recorded = trained(256)
    (batch,) = largest_batches(recorded, ["T4"], usd_per_hour=3.6)
    assert batch.batch_size is not None
    step = lp.predict(with_samples(recorded, batch.batch_size), ["T4"], history=False)["T4"]
    assert batch.step_seconds == pytest.approx(step.iteration_seconds)
    assert batch.samples_per_second == pytest.approx(batch.batch_size / step.iteration_seconds)
    # $3.6 an hour are $0.001 a second.
    assert batch.usd_per_million_samples == pytest.approx(1e6 / (batch.samples_per_second or 1) * 0.001)
    assert batch.offer == "your own price"
