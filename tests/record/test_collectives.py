"""A recorded step of several processes, without what they exchanged."""

from dataclasses import replace

import pytest

from lightning_predict.record.collectives import exchanges, without_collectives
from lightning_predict.record.trace import Kernel, Operation, Trace


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


def test_collectives_are_removed_with_the_times_that_include_them() -> None:
    alone = without_collectives(TWO)
    assert [operation.name for operation in alone.operations] == ["aten::mm", "aten::relu"]
    assert [one.name for one in alone.kernels] == ["sgemm"]
    assert (alone.step_seconds, alone.profiled_seconds) == ((), None)
    single = replace(TWO, world_size=1)
    assert without_collectives(single) is single


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "rcclGenericKernel(ncclDevComm*)",
        "mscclKernel_Sum_half_LL_false(ncclDevComm*, mscclAlgo*)",
        "void mscclpp::collective::allreduce8<__half>(__half*)",
        "void deep_ep::intranode::dispatch<4, 768, 8192>(int4*, float*)",
        "void deep_ep::internode_ll::combine<true, 7168, 9, 9>(void*)",
        "deep_ep::internode::notify_dispatch<false, 2>(int const*)",
        "void intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)",
        "void dispatch<8, 768>(int4*)",
        "cached_notify_combine<8>(void**)",
        "nvshmemi_barrier_kernel(int)",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void aiter::cross_device_reduce_1stage<half, 8>(aiter::RankData*)",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8, true>(tensorrt_llm::kernels::AllReduceParams)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<0, half, 8>(int)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "void c10d::intra_node_comm::twoShotAllReduceKernel<8u, true>(int)",
        "userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int, int)",
    ],
)
def test_communication_kernels_are_known_by_name(name: str) -> None:
    assert exchanges(name)


@pytest.mark.parametrize(
    "name",
    [
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)",
        "void softmax_warp_forward<float, WarpAllReduce<MaxOp>>(float*)",
        "triton_poi_fused_all_gather_into_tensor_copy_0",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
        "void cub::DeviceReduceKernel<cub::DeviceReducePolicy>(float*)",
        "_scatter_gather_elementwise_kernel<128, 8>(int)",
        "Memcpy PtoP (Device -> Device)",
    ],
)
def test_computing_kernels_are_not_communication(name: str) -> None:
    assert not exchanges(name)
