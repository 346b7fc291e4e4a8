"""A profile that does not know its tensors, and the same step captured elsewhere, which does."""

from __future__ import annotations

from dataclasses import replace

import pytest

import lightning_predict as lp
from lightning_predict.changes.followed import with_followed
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.tracing.precision import in_precision
from lightning_predict.tracing.trace import Kernel, Trace
from lightning_predict.what_if import compile_what_if
from tests.changes.example_steps import GPU, REPORTED, profiled, trained


def as_profiled(trace: Trace) -> Trace:
    """The step as a profiler of a GPU sees it: kernels of 50 us, no results, nobody's storages."""

    def kernel(number: int) -> Kernel:
        begin = 60e-6 * number
        return Kernel(
            name="kernel",
            seconds=50e-6,
            grid=(100, 1, 1),
            block=(256, 1, 1),
            registers_per_thread=32,
            shared_memory_bytes=0,
            stream=7,
            start_seconds=begin + 10e-6,
            launch_start_seconds=begin,
            launch_seconds=5e-6,
        )

    operations = tuple(
        replace(
            one,
            outputs=(),
            module=None,
            inputs=tuple(replace(tensor, id=None, device="cuda") for tensor in one.inputs),
            kernels=(kernel(number),),
            host_start_seconds=60e-6 * number,
            host_seconds=20e-6,
        )
        for number, one in enumerate(one for one in trace.operations if one.phase != "optimizer")
    )
    step = replace(trace, operations=operations, device="cuda", recorder="profiler", gpu_reported_name=REPORTED)
    return replace(step, step_seconds=(60e-6 * len(operations),), parameters=())


@pytest.fixture(scope="module")
def captured() -> Trace:
    return trained(256)


def test_a_followed_profile_knows_tensors_and_modules(captured: Trace) -> None:
    profile = as_profiled(captured)
    married = with_followed(profile, captured)
    forward = [one for one in captured.operations if one.phase != "optimizer"]
    assert [one.outputs != () for one in married.operations] == [one.outputs != () for one in forward]
    assert [one.module for one in married.operations] == [one.module for one in forward]
    assert married.kernels == profile.kernels
    assert married.parameters == captured.parameters


def test_compiling_a_profile_asks_for_the_followed_step_and_then_answers(captured: Trace) -> None:
    profile = as_profiled(captured)
    with pytest.raises(InvalidArgumentError, match="capture the same step on the meta device"):
        compile_what_if(profile, [GPU])
    before = lp.predict(profile, [GPU], history=False)[GPU]
    after = compile_what_if(profile, [GPU], followed=captured)[GPU]
    assert after.iteration_seconds < before.iteration_seconds


def test_another_step_is_refused(captured: Trace) -> None:
    with pytest.raises(InvalidArgumentError, match=r"only \d+% are in the followed step"):
        with_followed(as_profiled(captured), trained(8))
    with pytest.raises(InvalidArgumentError, match="holds no results of operations"):
        with_followed(as_profiled(captured), profiled(kernel_seconds=1e-3, every=1e-4))


def test_a_profile_is_cast_with_what_flows_between_products() -> None:
    half = in_precision(profiled(kernel_seconds=1e-3, every=1e-4), "float16")
    dtypes = {tensor.dtype for one in half.operations for tensor in one.inputs}
    assert dtypes == {"float16"}
