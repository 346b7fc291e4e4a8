import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.embeddings.step import Assignment, ShardingPlan, alltoall_message, sharded_step
from lightning_predict.embeddings.tables import EmbeddingTable
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.kernels.interconnect import collective_seconds
from lightning_predict.layouts.overlap import OVERLAP_COSTS
from lightning_predict.record.trace import Operation, Parameter, TensorInfo, Trace

LARGE = EmbeddingTable(rows=1000, dim=64, pooling=10)
SMALL = EmbeddingTable(rows=500, dim=32, pooling=5)
FOUR = "4xA100-SXM-80GB"


def messages(plan: ShardingPlan) -> dict[tuple[str, str], float]:
    return {(exchange.operation, exchange.carries): exchange.message_bytes for exchange in plan.exchanges}


def test_whole_tables_send_as_much_as_the_busiest_gpu() -> None:
    plan = sharded_step([Assignment(LARGE, "table_wise", 0), Assignment(SMALL, "table_wise", 1)], FOUR, samples=1024)
    # 256 samples a GPU. The first GPU sends 256 x 64 x 4 bytes to each of three; no other sends or gets more. An even
    # all-to-all with as much on a link has messages of 4/3 of that.
    vectors = 4 / 3 * 3 * 256 * 64 * 4
    assert messages(plan) == {
        ("alltoall", "indices"): 4 / 3 * 3 * 256 * 11 * 8,
        ("alltoall", "vectors"): vectors,
        ("alltoall", "gradients"): vectors,
    }


def test_shared_tables_send_by_hand() -> None:
    plan = sharded_step(
        [Assignment(LARGE, "row_wise"), Assignment(SMALL, "column_wise"), Assignment(SMALL, "data_parallel")],
        FOUR,
        samples=1024,
    )
    sums = 1024 * 64 * 4
    vectors = 4 * 256 * 8 * 4
    assert messages(plan) == {
        ("alltoall", "indices"): pytest.approx(4 * 256 * ((10 / 4 + 1) + (5 + 1)) * 8),
        ("alltoall", "vectors"): pytest.approx(vectors),
        ("reduce_scatter", "partial sums"): sums,
        ("alltoall", "gradients"): pytest.approx(vectors),
        ("all_gather", "gradients of the sums"): sums,
        ("all_reduce", "dense gradients"): 500 * 32 * 4,
    }
    assert plan.name == "mixed"


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=16))
def test_an_uneven_all_to_all_is_paced_by_its_busiest_gpu(chunks: list[float]) -> None:
    gpus = len(chunks)
    link = max(max(sum(chunks[:i] + chunks[i + 1 :]), chunks[i] * (gpus - 1)) for i in range(gpus))
    assert alltoall_message(np.array(chunks)) == pytest.approx(link * gpus / (gpus - 1))
    # Never less than an even one of as many bytes.
    assert alltoall_message(np.array(chunks)) >= sum(chunks) * (1 - 1e-9)


def test_the_step_is_the_slowest_look_up_the_slowest_update_and_all_exchanges() -> None:
    # One table is long in the forward pass as in the backward pass; the others wait for it.
    plan = sharded_step([Assignment(LARGE, "table_wise", 0), Assignment(SMALL, "table_wise", 1)], FOUR, samples=1024)
    assert plan.compute_seconds == max(plan.forward_seconds) + max(plan.backward_seconds)
    layout = layout_of(FOUR)
    exchanged = OVERLAP_COSTS.slowdown * sum(  # during a training step
        float(collective_seconds(operation, message, layout).middle[0])
        for (operation, _), message in messages(plan).items()
    )
    assert plan.communication_seconds == pytest.approx(exchanged)
    assert plan.seconds == pytest.approx(plan.compute_seconds + exchanged)
    assert plan.time.low < plan.seconds < plan.time.high
    busy = plan.gpu_seconds
    assert list(busy[2:]) == [0, 0]
    assert plan.imbalance == pytest.approx(busy[0] / (sum(busy) / 4))
    assert list(plan.memory_bytes) == [256_000, 64_000, 0, 0]
    assert "imbalance 2." in plan.reason
    assert "MiB; 0.000238 GiB on the fullest GPU" in plan.reason


@pytest.mark.parametrize(("kind", "gpu"), [("table_wise", 0), ("row_wise", None), ("column_wise", None)])
def test_one_gpu_has_nothing_to_send_and_takes_as_long_as_the_look_ups(kind: str, gpu: int | None) -> None:
    plan = sharded_step([Assignment(LARGE, kind, gpu), Assignment(SMALL, kind, gpu)], "A100-SXM-80GB", samples=1024)
    alone = sum(
        float(
            lp.operator_seconds(
                operation, "A100-SXM-80GB", bags=1024, lookups=table.pooling, rows=table.rows, dim=table.dim
            )
        )
        for table in (LARGE, SMALL)
        for operation in ("embedding_bag", "embedding_bag_backward")
    )
    assert plan.exchanges == ()
    assert plan.communication_seconds == 0
    assert plan.seconds == pytest.approx(alone, rel=1e-12)
    assert plan.imbalance == 1
    assert "exchanging" not in plan.reason


@pytest.mark.parametrize(
    ("assignments", "words", "problem"),
    [
        ([Assignment(LARGE, "table_wise")], {}, "A table_wise table is on GPU None; expected 0 to 3, as 4xA100"),
        ([Assignment(LARGE, "table_wise", 4)], {}, "A table_wise table is on GPU 4; expected 0 to 3"),
        ([Assignment(LARGE, "row_wise", 1)], {}, "A row_wise table is on all GPUs, but gpu=1; leave it out"),
        ([Assignment(LARGE, "row_wise")], {"samples": 3}, r"samples=3 for the 4 GPU\(s\) of 4xA100-SXM-80GB; expected"),
        (
            [Assignment(LARGE, "row_wise")],
            {"optimizer": "lion"},
            "optimizer='lion' is not known; choose one of adam, sgd, adagrad, row_wise_adagrad",
        ),
        ([Assignment(LARGE, "row_wise")], {"layout": "0xT4"}, r"'0xT4' has 1 machine\(s\) of 0 GPU"),
    ],
)
def test_invalid_argument_is_named(assignments: list[Assignment], words: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        sharded_step(assignments, **({"layout": FOUR, "samples": 1024} | words))  # type: ignore[arg-type]


def test_an_unknown_gpu_is_said() -> None:
    with pytest.raises(UnknownGpuError, match="In the layout '3xNOPE'"):
        sharded_step([Assignment(LARGE, "row_wise")], "3xNOPE", samples=1024)


def test_dense_gradients_are_exchanged_as_fast_as_predict_has_them() -> None:
    # One bucket of the table's 80 MB: the same message over the same links during a training step.
    table = EmbeddingTable(rows=200_000, dim=100, pooling=10)
    (exchange,) = sharded_step([Assignment(table, "data_parallel")], FOUR, samples=1024).exchanges
    weight = TensorInfo((200_000, 100), "float32")
    trace = Trace(
        operations=(
            Operation(name="aten::add", phase="forward", inputs=(weight, weight), outputs=(weight,), module="0"),
            Operation(name="aten::mul", phase="backward", inputs=(weight, weight), outputs=(weight,), module="0"),
            Operation(name="aten::mul", phase="optimizer", inputs=(weight, weight), outputs=(weight,), module="0"),
        ),
        device="meta",
        recorder="dispatch",
        parameters=(Parameter(name="0.weight", shape=(200_000, 100), dtype="float32", requires_grad=True),),
    )
    shared = lp.predict(trace, [FOUR], strategy="ddp,bucket_cap_mb=1000", history=False)[FOUR]
    assert exchange.message_bytes == 200_000 * 100 * 4
    assert exchange.time.middle == pytest.approx(shared.communication_seconds, rel=1e-9)
