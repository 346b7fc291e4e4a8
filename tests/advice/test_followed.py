"""A profile that does not know its tensors, and the same step captured elsewhere, which does."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.advice.changes import CHANGES
from lightning_predict.advice.what_if import what_if
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.data_flow import has_data_flow, with_data_flow
from lightning_predict.record.precision import in_precision
from lightning_predict.record.recording import _followed
from lightning_predict.record.trace import Kernel, Trace
from tests.advice.example_steps import GPU, REPORTED, profiled, trained


def as_profiled(trace: Trace) -> Trace:
    """The step as a profiler of a GPU sees it: kernels of 50 us, no results, storages without owners."""

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
            recorded,
            outputs=(),
            module=None,
            inputs=tuple(replace(tensor, id=None, device="cuda") for tensor in recorded.inputs),
            kernels=(kernel(number),),
            host_start_seconds=60e-6 * number,
            host_seconds=20e-6,
        )
        for number, recorded in enumerate(operation for operation in trace.operations if operation.phase != "optimizer")
    )
    step = replace(trace, operations=operations, device="cuda", recorder="profiler", gpu_reported_name=REPORTED)
    return replace(step, step_seconds=(60e-6 * len(operations),), parameters=())


@pytest.fixture(scope="module")
def captured() -> Trace:
    return trained(256)


def test_profile_takes_data_flow_from_a_capture_of_the_same_step_only(captured: Trace) -> None:
    profile = as_profiled(captured)
    married = with_data_flow(profile, captured)
    forward = [operation for operation in captured.operations if operation.phase != "optimizer"]
    assert [operation.outputs != () for operation in married.operations] == [one.outputs != () for one in forward]
    assert [operation.module for operation in married.operations] == [operation.module for operation in forward]
    assert (married.kernels, married.parameters) == (profile.kernels, captured.parameters)
    with pytest.raises(InvalidArgumentError, match=r"only \d+% are in the followed step"):
        with_data_flow(as_profiled(captured), trained(8))
    with pytest.raises(InvalidArgumentError, match="holds no results of operations"):
        with_data_flow(as_profiled(captured), profiled(kernel_seconds=1e-3, every=1e-4))
    half = in_precision(profiled(kernel_seconds=1e-3, every=1e-4), "float16")
    dtypes = {tensor.dtype for operation in half.operations for tensor in operation.inputs}
    assert dtypes == {"float16"}


def test_compile_what_if_of_a_profile_needs_a_capture(captured: Trace) -> None:
    profile = as_profiled(captured)
    with pytest.raises(InvalidArgumentError, match="capture the same step on the meta device"):
        what_if("compile", profile, [GPU])
    before = lp.predict(profile, [GPU], history=False)[GPU]
    after = what_if("compile", profile, [GPU], followed=captured)[GPU]
    assert after.iteration_seconds < before.iteration_seconds


def test_capture_on_cuda_adds_data_flow_or_a_note(captured: Trace) -> None:
    with torch.device("meta"):
        layer, rows = nn.Linear(8, 8), torch.randn(4, 8)

    def step() -> None:
        layer.zero_grad()
        layer(rows).sum().backward()

    profile = replace(as_profiled(lp.capture(step)), device="meta")
    followed = _followed(profile, step)
    assert has_data_flow(followed)
    assert not has_data_flow(profile)
    assert followed.kernels == profile.kernels
    other = _followed(replace(as_profiled(captured), device="meta"), step)
    assert other.notes[-1].startswith("Tensors could not be followed: Of the operations that ran on the GPU only")


def test_measured_memory_scales_with_derived_memory() -> None:
    """Half of what the blocks keep for twice the measured bytes: the changed step follows the ratio.

    Each of the blocks keeps 64 MiB of 8,192 rows, in addition to 64 MiB of gradients, which come when it is gone.
    """
    large = trained(8192)
    followed = with_data_flow(as_profiled(large), large)
    measured = replace(followed, memory=replace(followed.memory, reserved_bytes=10**10))
    fresh = [CHANGES["checkpointing"].apply(trace, Assumptions())[0].memory for trace in (followed, measured)]
    assert fresh[0].reserved_bytes is None
    assert fresh[1].reserved_bytes is not None
    assert 0 < fresh[1].reserved_bytes < 10**10
