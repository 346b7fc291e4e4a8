"""A recorded step of several processes, without what they exchanged."""

from __future__ import annotations

from dataclasses import replace

from lightning_predict.tracing.collectives import without_collectives
from lightning_predict.tracing.trace import Kernel, Operation, Trace


def kernel(name: str) -> Kernel:
    return Kernel(
        name=name,
        seconds=1e-3,
        grid=(1, 1, 1),
        block=(1, 1, 1),
        registers_per_thread=0,
        shared_memory_bytes=0,
        stream=7,
        start_seconds=0.0,
    )


PRODUCT = Operation(name="aten::mm", phase="backward", kernels=(kernel("sgemm"), kernel("ncclDevKernel_AllReduce")))
TWO = Trace(
    operations=(
        PRODUCT,
        Operation(name="c10d::allreduce_", phase="backward", kernels=(kernel("ncclDevKernel_AllReduce"),)),
        Operation(name="record_param_comms", phase="backward"),
        Operation(name="aten::relu", phase="forward"),
    ),
    device="cuda",
    recorder="profiler",
    step_seconds=(0.1,),
    profiled_seconds=0.2,
    world_size=2,
)


def test_collectives_and_their_kernels_are_left_out_with_the_times_that_held_them() -> None:
    alone = without_collectives(TWO)
    assert [operation.name for operation in alone.operations] == ["aten::mm", "aten::relu"]
    assert [one.name for one in alone.kernels] == ["sgemm"]
    assert (alone.step_seconds, alone.profiled_seconds) == ((), None)


def test_a_single_process_is_left_as_it_is() -> None:
    single = replace(TWO, world_size=1)
    assert without_collectives(single) is single
