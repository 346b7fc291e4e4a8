"""The whole step of a DLRM whose tables are shared: two queues by hand, for each way to share a table."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.base.errors import InfeasiblePlanError, InvalidArgumentError
from lightning_predict.embeddings.placement import place_tables
from lightning_predict.embeddings.step import Assignment, plan_document, sharded_step
from lightning_predict.embeddings.step_tables import without_tables
from lightning_predict.embeddings.tables import EmbeddingTable, tables_of_trace, with_skew
from lightning_predict.embeddings.whole_step import ShardedEmbeddings, WholeStep, possible_plans, table_optimizer
from lightning_predict.hardware.layouts import Layout, layout_of
from lightning_predict.kernels.interconnect import CATALOGUE
from lightning_predict.kernels.models import kernel_models
from lightning_predict.layouts.overlap import OVERLAP_COSTS, Event, Links, slowest_of
from lightning_predict.layouts.single_gpu import PredictionContext, single_steps
from lightning_predict.layouts.strategy import parse_strategy
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.host import host_of
from tests.known import known
from tests.workloads.recommendation import Dlrm

FOUR = layout_of("4xA100-SXM-80GB")
BATCH, TABLES, ROWS, WIDTH, POOLING = 2048, 4, 500_000, 64, 10
KINDS = ("table_wise", "row_wise", "column_wise", "data_parallel")


def recorded(*, batch: int = BATCH, rows: int = ROWS, accumulated: int = 1) -> Trace:
    """A step of SGD on the meta device; its first one made the gradients."""
    with torch.device("meta"):
        model = Dlrm(tables=TABLES, rows=rows, width=WIDTH, bottom=(256, 512), top=(1024, 512))
        dense, indices = torch.empty(batch, 256), torch.zeros(TABLES, batch, POOLING, dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = CaptureSession(device=dense.device, model=model, optimizers=[optimizer])
    for is_recorded in (False, True):
        if is_recorded:
            session.start()
        optimizer.zero_grad()
        for _ in range(accumulated):
            model(dense, indices).sum().backward()
        optimizer.step()
        if is_recorded:
            session.stop()
    return replace(session.trace(), samples=batch * accumulated)


@pytest.fixture(scope="module")
def step() -> Trace:
    return recorded()


FAST_HOST = host_of(0.1)  # A host that never keeps the device waiting: the values derived by hand here are device times


def setting_of(layout: Layout) -> PredictionContext:
    return PredictionContext((layout.gpu,), None, kernel_models((layout.gpu.name,), None), FAST_HOST, CATALOGUE)


def whole(trace: Trace, embedding: str, layout: Layout = FOUR) -> WholeStep:
    setting = setting_of(layout)
    single = single_steps(trace, setting)
    sharded = ShardedEmbeddings(parse_strategy(f"embedding={embedding}"), setting)
    (plan,) = possible_plans(trace, layout, embedding, interconnect=CATALOGUE, models=setting.models)
    return sharded.whole(sharded.shared(single), single.steps[0], layout, plan)


def total(events: tuple[Event, ...], name: str) -> float:
    return math.fsum(event.seconds for event in events if event.name == name)


def start(events: tuple[Event, ...], name: str) -> float:
    return min(event.start_seconds for event in events if event.name == name)


def end(events: tuple[Event, ...], name: str) -> float:
    return max((event.start_seconds + event.seconds for event in events if event.name == name), default=0.0)


EXCHANGES = {
    "table_wise": ("all-to-all of indices", "all-to-all of vectors", "all-to-all of gradients"),
    "row_wise": ("all-to-all of indices", "reduce-scatter of partial sums", "all-gather of gradients of the sums"),
    "column_wise": ("all-to-all of indices", "all-to-all of vectors", "all-to-all of gradients"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_way_by_hand(kind: str, step: Trace) -> None:
    sharded = whole(step, kind)
    events = sharded.events
    look_ups, update = max(sharded.chosen.plan.forward_seconds), max(sharded.chosen.plan.backward_seconds)
    assert total(events, "look-ups") >= look_ups * 0.999  # its launch may be later
    assert total(events, "update of the tables") == pytest.approx(update, rel=0.05)
    free = total(events, "layers that need no vectors")
    dense = total(events, "layers on the vectors") + total(events, "backward pass beside the gradients' exchange")
    assert free > 0  # the bottom perceptron
    assert total(events, "all-reduce of dense gradients") > 0
    last = total(events, "dense update")
    if kind == "data_parallel":  # every look-up is at home; the tables' gradients are copies', behind the update
        assert {event.name for event in events if event.is_transfer} == {
            "all-reduce of dense gradients",
            "all-reduce of gradients of copied tables",
        }
        copies = total(events, "all-reduce of gradients of copied tables")
        computed = total(events, "look-ups") + free + dense + total(events, "update of the tables")
        expected = max(computed, end(events, "all-reduce of dense gradients")) + copies + last
    else:
        indices, vectors, gradients = (total(events, name) for name in EXCHANGES[kind])
        # Look-ups wait for indices. While vectors travel, the bottom perceptron computes. The gradients of the vectors
        # travel when the layers on them are done, after earlier messages on the link, at the same time as the
        # remainder.
        ready = indices + total(events, "look-ups") + max(vectors, free) + total(events, "layers on the vectors")
        assert start(events, EXCHANGES[kind][1]) == pytest.approx(indices + total(events, "look-ups"))
        assert start(events, EXCHANGES[kind][2]) >= ready * (1 - 1e-9)
        computed = ready + total(events, "backward pass beside the gradients' exchange")
        at = max(computed, start(events, EXCHANGES[kind][2]) + gradients)
        assert start(events, "update of the tables") == pytest.approx(at)
        expected = max(at + total(events, "update of the tables"), end(events, "all-reduce of dense gradients")) + last
    hidden = sum(event.seconds for event in events if event.is_transfer) - (
        expected - sum(event.seconds for event in events if not event.is_transfer)
    )
    alone = np.array(sum(event.seconds for event in events if not event.is_transfer))
    waiting = float(OVERLAP_COSTS.speed_deviation(alone)) * slowest_of(4) * float(alone)
    assert sharded.step.seconds == pytest.approx(
        expected + OVERLAP_COSTS.contention_on(FOUR) * hidden + waiting, rel=1e-6
    )
    assert math.fsum(event.seconds for event in events if event.is_critical) == pytest.approx(expected, rel=1e-6)


def test_vectors_are_exchanged_by_hand(step: Trace) -> None:
    # Each of four GPUs holds a table: of its 2048 samples' vectors of 64 numbers it gets 1/4 x 4 tables. Even, so the
    # message is all that a GPU holds in the end: 4 tables x 2048 x 64 x 4 bytes.
    sharded = whole(step, "table_wise")
    links = Links(FOUR, CATALOGUE, OVERLAP_COSTS.slowdown)
    (vectors,) = links.collective("alltoall", [TABLES * BATCH * WIDTH * 4])
    assert total(sharded.events, "all-to-all of vectors") == pytest.approx(float(vectors[1]))
    (indices,) = links.collective("alltoall", [TABLES * BATCH * (POOLING + 1) * 8])
    assert total(sharded.events, "all-to-all of indices") == pytest.approx(float(indices[1]))


def test_predict_and_shard_share_one_all_reduce() -> None:
    # A layer of 1024 x 16384 float32 numbers, and a copied table of as many: 64 MiB each.
    with torch.device("meta"):
        layer, data = nn.Linear(16384, 1024, bias=False), torch.empty(8, 16384)
    trace = lp.capture(lambda: layer(data).sum().backward(), samples_per_step=8)
    predicted = lp.predict(trace, ["4xA100-SXM-80GB"], strategy="ddp", history=False)["4xA100-SXM-80GB"]
    table = EmbeddingTable(rows=16384, dim=1024)
    (exchange,) = sharded_step([Assignment(table, "data_parallel")], FOUR, samples=32).exchanges
    assert exchange.message_bytes == 1024 * 16384 * 4
    assert exchange.time.middle == predicted.step.communication_seconds


def test_bottom_perceptron_overlaps_in_any_program_order() -> None:
    class BottomFirst(Dlrm):
        def forward(self, dense: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
            bottom = self.bottom(dense)
            vectors = torch.stack((bottom, *(table(rows) for table, rows in zip(self.tables, indices, strict=True))), 1)
            result: torch.Tensor = self.logit(self.top(torch.cat((bottom, vectors[:, 1:].sum(2)), dim=1)))
            return result

    with torch.device("meta"):
        first = BottomFirst(tables=4, rows=1000, width=6, bottom=(256, 512), top=(64,))
        first.top = nn.Sequential(nn.Linear(10, 64), nn.ReLU())
        dense, indices = torch.empty(BATCH, 256), torch.zeros(4, BATCH, POOLING, dtype=torch.int64)
    trace = lp.capture(lambda: first(dense, indices).sum().backward(), samples_per_step=BATCH)
    assert total(whole(trace, "row_wise").events, "layers that need no vectors") > 0


def test_auto_takes_the_fastest_plan_and_keeps_it_for_validation(step: Trace) -> None:
    setting = setting_of(FOUR)
    single = single_steps(step, setting)
    sharded = ShardedEmbeddings(parse_strategy("embedding=auto"), setting)
    plans = possible_plans(step, FOUR, "auto", interconnect=CATALOGUE, models=setting.models)
    assert {plan.plan.name for plan in plans} >= set(KINDS)
    shared = sharded.shared(single)
    seconds = [sharded.whole(shared, single.steps[0], FOUR, plan).step.seconds for plan in plans]
    (fastest,) = sharded.steps(single, single.steps, [FOUR])
    assert fastest.seconds == min(seconds)
    assert fastest.gpu == "4xA100-SXM-80GB"
    assert fastest.interval.low < fastest.seconds < fastest.interval.high
    sharded = ShardedEmbeddings(parse_strategy("embedding=auto"), setting)
    single = single_steps(step, setting)
    sharded.steps(single, single.steps, [FOUR])
    forward = replace(
        step, operations=tuple(operation for operation in step.operations if operation.phase == "forward")
    )
    alone = single_steps(forward, setting)
    (validated,) = sharded.steps(alone, alone.steps, [FOUR])
    assert 0 < validated.seconds < sharded.steps(single, single.steps, [FOUR])[0].seconds
    assert validated.optimizer_seconds == 0


def test_one_gpu_keeps_its_step_and_the_optimizer_is_the_recorded_one(step: Trace) -> None:
    alone, auto = (
        lp.predict(step, ["A100-SXM-80GB"], strategy=words, history=False)["A100-SXM-80GB"]
        for words in ("ddp", "embedding=auto")
    )
    assert alone.iteration_seconds == auto.iteration_seconds
    assert alone.memory_bytes == auto.memory_bytes

    def with_state(numbers: int) -> Trace:
        memory = step.memory
        state = numbers * (memory.parameter_bytes or 0)
        changed = type(memory)(parameter_bytes=memory.parameter_bytes, optimizer_state_bytes=state)
        return replace(step, memory=changed)

    assert [table_optimizer(with_state(numbers)) for numbers in (0, 1, 2)] == ["sgd", "adagrad", "adam"]


def test_predicted_tables_have_their_note_critical_path_and_memory(step: Trace) -> None:
    found = lp.predict(step, ["4xA100-SXM-80GB"], strategy="embedding=table_wise", history=False)["4xA100-SXM-80GB"]
    tables, path = found.step.notes[-2:]
    assert tables.startswith("Embedding tables: table_wise, updated by sgd in the backward pass; ")
    assert (
        "Predicted for torch's modules with one kernel per table. Fused look-ups are faster: TorchRec publishes"
        in tables
    )
    # "speedup" in TorchRec's benchmarks/README.md: 2.7 to 3.1 for 10 tables, 8.4 to 11.9 for 100, of one V100.
    assert "TorchRec publishes 3 times their rate for 10 tables, 10 times for 100" in tables
    assert path.startswith("Critical path: all-to-all of indices ")
    assert "look-ups" in path
    whole_copies = lp.predict(step, ["4xA100-SXM-80GB"], history=False)["4xA100-SXM-80GB"]
    table = ROWS * WIDTH * 4
    # One of four tables and no gradient of it, instead of all four, their gradients, and DDP's buckets of them.
    assert found.memory_bytes is not None
    assert known(whole_copies.memory_bytes) - found.memory_bytes > 3 * TABLES * table - 1.2 * table
    dense = without_tables(step)
    assert {parameter.name for parameter in dense.parameters} == {
        parameter.name for parameter in step.parameters if not parameter.name.startswith("tables.")
    }
    assert known(step.memory.parameter_bytes) - known(dense.memory.parameter_bytes) == TABLES * table
    assert not any("embedding" in operation.name for operation in dense.operations)
    # Sent: indices and vectors of all samples for the GPU's table.
    sent = TABLES * BATCH * ((POOLING + 1) * 8 + WIDTH * 4)
    assert found.memory_bytes > table + sent


def test_a_plan_file_is_what_auto_chose(step: Trace, tmp_path: Path) -> None:
    tables = tables_of_trace(step)
    plan = place_tables(tables.tables, FOUR, samples=4 * BATCH, kinds=["row_wise", "column_wise"]).best
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_document(plan, "adagrad")))
    prediction = lp.predict(step, ["4xA100-SXM-80GB"], strategy=f"embedding={path}", history=False)["4xA100-SXM-80GB"]
    assert f"Embedding tables: {plan.name}, updated by adagrad" in prediction.step.notes[-2]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tables": []}, "shards 0 tables, and the step looks up 4"),
        ({"rows": 7}, "table 0 has 7 rows of 64, but in the step, 'tables.0' has 500,000 of 64"),
        ({"kind": "diagonal"}, "'diagonal'"),
        ({"gpu": 9}, "A table_wise table is on GPU 9; expected 0 to 3"),
        ({"optimizer": "lion"}, "'lion'"),
    ],
)
def test_a_plan_for_other_tables_is_refused(
    change: dict[str, object], problem: str, step: Trace, tmp_path: Path
) -> None:
    tables = [Assignment(table, "table_wise", 0) for table in tables_of_trace(step).tables]
    document = plan_document(sharded_step(tables, FOUR, samples=4 * BATCH), "sgd")
    rows = document["tables"]
    assert isinstance(rows, list)
    for name, value in change.items():
        (document if name in document else rows[0])[name] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidArgumentError, match=problem):
        lp.predict(step, ["4xA100-SXM-80GB"], strategy=f"embedding={path}", history=False)


def test_what_cannot_be_shared_is_refused(step: Trace) -> None:
    with pytest.raises(InvalidArgumentError, match=r"embedding='plan\.nowhere' is not auto, table_wise"):
        lp.predict(step, ["4xT4"], strategy="embedding=plan.nowhere", history=False)
    with pytest.raises(InvalidArgumentError, match="tables of one batch, and this step has 2"):
        lp.predict(replace(recorded(accumulated=2), batches=2), ["4xT4"], strategy="embedding=row_wise", history=False)
    with pytest.raises(InfeasiblePlanError, match="No sharding of the 4 table"):
        lp.predict(recorded(rows=200_000_000), ["2xT4"], strategy="embedding=auto", history=False)
    with pytest.raises(InvalidArgumentError, match="shares tables while each GPU holds all other layers; choose ddp"):
        parse_strategy("fsdp,embedding=auto")
    with pytest.raises(InvalidArgumentError, match="embedding= says nothing"):
        parse_strategy("embedding=")
    assert parse_strategy("embedding=auto") == parse_strategy("ddp, embedding=auto")


def test_rows_that_many_ask_for_are_in_l2_and_unknown_tables_are_refused(step: Trace) -> None:
    def seconds(alpha: float | None) -> float:
        predictions = lp.predict(step, [FOUR], strategy="embedding=row_wise", history=False, zipf_alpha=alpha)
        return predictions["4xA100-SXM-80GB"].iteration_seconds

    assert seconds(None) == seconds(0.0) > seconds(0.9) > seconds(1.3)
    alphas = [table.alpha for table in tables_of_trace(with_skew(step, {"tables.2": 1.1})).tables]
    assert alphas == [0, 0, 1.1, 0]
    with pytest.raises(InvalidArgumentError, match="zipf_alpha names 'other', which looks up no table"):
        with_skew(step, {"other": 1.0})
    with pytest.raises(InvalidArgumentError, match=r"zipf_alpha=9\.0 of 'tables\.0'; expected a number from 0 to 4"):
        with_skew(step, {"tables.0": 9.0})


def test_a_search_lists_shared_tables() -> None:
    best = lp.best_layouts(recorded(rows=50_000_000), ["4xA100-SXM-80GB"])
    assert best[0].strategy.name == "ddp,embedding=auto"  # of what fits; four copies of 48 GiB do not


def test_sparse_gradients_of_tables_are_part_of_their_update() -> None:
    with torch.device("meta"):
        model = Dlrm(tables=TABLES, rows=5_000_000, width=WIDTH, bottom=(256, 512), top=(1024, 512))
        for table in model.tables:
            assert isinstance(table, nn.EmbeddingBag)
            table.sparse = True
        dense, indices = torch.empty(BATCH, 256), torch.zeros(TABLES, BATCH, POOLING, dtype=torch.int64)
    trace = lp.capture(lambda: model(dense, indices).sum().backward(), samples_per_step=BATCH)
    names = {operation.name for operation in without_tables(trace).operations if operation.phase == "backward"}
    assert not {name for name in names if "embedding" in name}
    events = whole(trace, "row_wise").events
    # The bottom perceptron's backward pass is half of a millisecond, not the copies of 1.2 GiB tables.
    assert total(events, "backward pass beside the gradients' exchange") < 1e-3
