from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.accuracy.workloads import llama
from benchmarks.accuracy.workloads.benchmarks import benchmark_trace, release_of
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.kernels.memory_bound import bytes_read, bytes_written
from lightning_predict.record.trace import Operation, Trace

WAIT = "aten::_local_scalar_dense"


def recorded(name: str, precision: str, release: str) -> Trace:
    return benchmark_trace(name, precision=precision, batch=2, torch_release=release).trace


def waits(trace: Trace) -> int:
    """Count the values that the scripts read from the device; torch's own optimizers read their step from the host."""
    return sum(operation.name == WAIT and operation.phase != "optimizer" for operation in trace.operations)


def after_backward(trace: Trace) -> list[Operation]:
    return [operation for operation in trace.operations if operation.phase in ("optimizer", "other")]


def test_ncf_updates_by_one_kernel_and_never_asks_for_the_loss() -> None:
    trace = recorded("ncf", "FP32", "1.13.0")
    assert waits(trace) == 0
    (update,) = (one for one in trace.operations if one.name == "aten::_fused_adam_")
    parameters = 31_832_577  # as the published log says
    # Parameter, gradient and two moments are read, all but the gradient written: 7 x 4 bytes.
    assert bytes_read(update) + bytes_written(update) == pytest.approx(7 * 4 * parameters, rel=1e-4)


def test_float16_gradients_become_float32_are_clipped_and_update_copies() -> None:
    names = Counter(operation.name for operation in after_backward(recorded("bert_base_squad", "FP16", "1.13.0")))
    assert names["aten::_to_copy"] == names["aten::copy_"] > 100  # to gradients of the copies, and back from these
    assert names["aten::_foreach_norm"] == names["aten::_foreach_mul_"] == names["aten::_fused_adam_"] == 1
    assert names[WAIT] == 1  # the loss


def test_clipping_waits_for_the_device_before_torch_1_10() -> None:
    # BertAdam clips the gradient of each parameter alone; the loss is asked for under any release.
    now, before = (recorded("bert_base_squad", "FP32", release) for release in ("1.13.0", "1.9.0"))
    parameters = sum(operation.name == "aten::addcmul_" for operation in now.operations)
    assert (waits(now), waits(before)) == (1, 1 + 1 + parameters)  # all gradients are clipped at once, too


def test_products_of_odd_sizes_leave_tensor_cores_before_cublas_11() -> None:
    old, new = (recorded("transformerxlbase", "FP16", release) for release in ("1.4.0", "1.7.0"))

    def odd_products(trace: Trace) -> set[str]:
        return {
            operation.inputs[-1].dtype
            for operation in trace.operations
            if operation.name in ("aten::mm", "aten::addmm") and 267735 in operation.inputs[-2].shape
        }

    assert odd_products(old) == {"float32"}
    assert odd_products(new) == {"float16"}


def test_a_release_is_two_numbers() -> None:
    assert release_of("2.3.0a0+40ec155e58.nv24.03") == (2, 3)
    with pytest.raises(InvalidArgumentError, match="Version 'nightly' of torch is not known; expected one such as"):
        release_of("nightly")


def test_one_sample_of_a_llama_goes_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = llama.LlamaConfig(layers=2, hidden=64, heads=4, kv_heads=2, inner=128, vocabulary=512)
    monkeypatch.setitem(llama.LLAMA, "tiny", sizes)
    assert llama.main(["tiny", "16", str(tmp_path / "step.json.gz")]) == 0
    trace = Trace.load(str(tmp_path / "step.json.gz"))
    assert trace.samples == 1
    # Two tables; a block has queries and outputs, keys and values of half of the heads, a gated perceptron, two norms.
    block = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64
    assert sum(math.prod(one.shape) for one in trace.parameters) == 2 * 512 * 64 + 2 * block + 64
