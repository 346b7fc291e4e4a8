"""Bottlenecks of two opposite models, by hand."""

from dataclasses import replace

import pytest
import torch

import lightning_predict as lp
from lightning_predict.timeline.host import SERVER_HOST, SHARED_OVERHEADS
from tests.workloads.catalogue import WORKLOADS
from tests.workloads.modules import Supervised, click_loss, momentum
from tests.workloads.recommendation import Dlrm
from tests.workloads.test_workloads import on_meta, step_of

TABLES, ROWS, WIDTH, BATCH = 8, 60_000, 64, 128


def dlrm() -> lp.Trace:
    """Tables of 30.72 million numbers, perceptrons 512-512-64 and 100-1024-1024-1024-1 of 2.5 million, 128 samples."""
    with torch.device("meta"):
        network = Dlrm(tables=TABLES, rows=ROWS, width=WIDTH, bottom=(512, 512), top=(1024, 1024, 1024))
        batch = torch.rand(BATCH, 512), torch.randint(ROWS, (TABLES, BATCH, 10)), torch.rand(BATCH)
        module = Supervised(network, click_loss, momentum)
    return without_pauses(lp.capture(step_of(module, batch), warmup_steps=0))


def without_pauses(trace: lp.Trace) -> lp.Trace:
    """Take out the pauses of this machine, which a recording holds as Python work of the step."""
    return replace(trace, operations=tuple(replace(operation, python_seconds=0.0) for operation in trace.operations))


def test_dlrm_is_host_bound_on_h100_and_device_bound_on_t4() -> None:
    result = lp.predict(dlrm(), ["T4", "H100-SXM-80GB"])
    # The host, by the shared table (microseconds: forward 13.3 with a launch and 4.2 without, backward 11.2 and 2.8,
    # optimizer 15.4; beyond that 24 for a product with its bias and 10 for another). Forward: 8 bags with 8 ranges of
    # offsets, 6 products, 5 ReLUs, stack, bmm, index, cat, loss, seed: 33 launches, and 24 views. Backward: 8 bags, 11
    # products, 6 sums of biases, 5 ReLUs, 2 bmm and 8 more: 40 launches, and 69 views. The optimizer: 2 updates of
    # all parameters together. Launches of the backward pass take its host twice as long without a measurement. A
    # second launch takes 5.6 and the time before it (2.8 backward, 1.4 in the optimizer): one for each sum of a bias,
    # and for each update, whose 33.2 million numbers are 507 chunks of 65,536, of which a launch takes 320.
    host = 1e-6 * (33 * 13.3 + 24 * 4.2 + 2 * (40 * 11.2 + 69 * 2.8) + 2 * 15.4 + 6 * 24 + (1 + 11 + 2) * 10)
    host += 1e-6 * (2 * 6 * (5.6 + 2.8) + 2 * (5.6 + 1.4))
    assert host == pytest.approx(2252e-6, rel=1e-3)
    # The H100 has NVLink and is from 2022, so that its usual host takes SERVER_HOST (1.25) times the table's time.
    for name, factor in (("T4", 1.0), ("H100-SXM-80GB", SERVER_HOST)):
        # Releases of torch differ by a view or two.
        assert result[name].host_seconds == pytest.approx(factor * host, rel=0.05)

    # The T4 moves 0.32 TB/s at best. The update alone copies 33.2 million gradients (2 transfers of 4 bytes) and adds
    # them to the parameters (3): 664 MB. The tables' gradients are cleared and written: 246 MB. So 2.84 ms at least.
    slow, fast = result["T4"], result["H100-SXM-80GB"]
    assert slow.device_seconds > (664e6 + 246e6) / 320e9 > host
    assert slow.verdict is not None
    assert slow.verdict.bound_by == "device"
    assert slow.verdict.gain == pytest.approx(min(0.5, 1 - host / slow.device_seconds), abs=0.01)

    # The H100 moves 3.35 TB/s and has 67 TFLOP/s. 910 MB, 3 more passes over 10 MB of perceptrons, and 6 FLOPs for each
    # of their 2.5 million weights and sample: 0.31 ms at best, 0.62 ms at half of it. Even with 3 us for starting each
    # of the 75 kernels that is 0.85 ms, which the host's 2.3 ms hide.
    at_best = (910e6 + 30e6) / 3.35e12 + 6 * 2.5e6 * BATCH / 67e12
    assert fast.device_seconds < 2 * at_best + 75 * 3e-6 < host
    assert fast.iteration_seconds == pytest.approx(fast.host_seconds)
    assert fast.verdict is not None
    assert fast.verdict.sentence == "bound by the host: a GPU twice as fast gains 0 %"
    assert fast.verdict.idle_share == pytest.approx(1 - fast.device_seconds / fast.host_seconds)


def test_gpt_of_long_sequences_is_device_bound_on_h100() -> None:
    module, batch = on_meta(WORKLOADS["gpt2"])
    trace = without_pauses(lp.capture(step_of(module, batch), warmup_steps=0))
    result = lp.predict(trace, ["T4", "H100-SXM-80GB"])
    # 8 x 1024 tokens through 124 million weights, 6 FLOPs each: 6.1 TFLOP, at 8.1 TFLOP/s on the T4 and 67 on the H100.
    flops = 6 * 124e6 * 8 * 1024
    # No operation takes the host longer than the optimizer's 11 us.
    host = len(trace.operations) * SHARED_OVERHEADS["optimizer"].total_seconds(launches=1)
    for name, peak in (("T4", 8.1e12), ("H100-SXM-80GB", 67e12)):
        prediction = result[name]
        assert prediction.device_seconds > flops / peak > host > prediction.host_seconds
        assert prediction.verdict is not None
        assert prediction.verdict.sentence == "bound by the device: a GPU twice as fast gains 50 %"
        assert prediction.verdict.idle_share == pytest.approx(0, abs=1e-6)
        path = prediction.verdict.critical_path
        assert sum(path.values()) == pytest.approx(1)
        # Of 124 million weights 85 are in the blocks, 39 in the product with the tied embedding.
        assert sum(share for part, share in path.items() if part.startswith("blocks.*")) > 0.6
