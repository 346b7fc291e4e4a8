from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_predict.base.errors import InfeasiblePlanError, InvalidArgumentError
from lightning_predict.embeddings.placement import TABLE_SHARE, TablePlacement, place_tables
from lightning_predict.embeddings.step import Assignment, ShardingPlan, sharded_step
from lightning_predict.embeddings.tables import EmbeddingTable
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.kernels.interconnect import Interconnect
from lightning_predict.layouts.overlap import OVERLAP_COSTS

GIB = 2**30
EIGHT = "8xA100-SXM-80GB"


def plans(placement: TablePlacement) -> dict[str, ShardingPlan]:
    return {plan.name: plan for plan in placement.plans}


def table(rows: float, dim: int = 64, pooling: float = 20, name: str | None = None) -> EmbeddingTable:
    return EmbeddingTable(rows=int(rows), dim=dim, pooling=pooling, name=name)


def test_plans_deal_out_evenly_and_take_what_their_assignments_take() -> None:
    placement = place_tables([table(1e6)] * 16, EIGHT, samples=65536, kinds=["table_wise"])
    (plan,) = placement.plans
    gpus = [assignment.gpu for assignment in plan.assignments]
    assert sorted(gpus, key=str) == [gpu for gpu in range(8) for _ in range(2)]
    assert plan.imbalance == pytest.approx(1, abs=1e-12)
    assert placement.refused == {}
    placement = place_tables([table(1e6), table(2e5, dim=16), table(3e7, dim=128)], "4xL4", samples=8192)
    for plan in placement.plans:
        assert plan == sharded_step(plan.assignments, "4xL4", samples=8192)


def test_plans_are_ordered_and_say_why() -> None:
    tables = [table(1e6, name=f"t{index}") for index in range(16)]
    placement = place_tables(tables, EIGHT, samples=65536)
    times = [plan.seconds for plan in placement.plans]
    assert times == sorted(times)
    assert {"table_wise", "row_wise", "column_wise", "data_parallel"} <= set(plans(placement))
    best, following = placement.plans[:2]
    assert placement.reason.startswith(f"{best.name} is fastest: ")
    assert f"of {following.name}, " in placement.reason
    # A pooled bag of 20 rows: whole tables send one vector, rows 8 partial sums.
    ways = plans(placement)
    assert ways["table_wise"].communication_seconds < ways["row_wise"].communication_seconds


def test_table_that_no_gpu_can_hold_is_shared() -> None:
    # 1e9 rows of 64 numbers: 238 GiB; 85 % of 80 GiB are 68.
    tables = [table(1e9, name="users"), *(table(1e5, name=f"t{index}") for index in range(7))]
    placement = place_tables(tables, EIGHT, samples=65536, kinds=["table_wise", "row_wise"])
    assert placement.refused == {"table_wise": "table 'users' needs 238 GiB, but a GPU has 68 GiB for tables"}
    assert placement.best.name == "mixed"
    assert placement.best.assignments[0] == Assignment(tables[0], "row_wise")
    assert max(placement.best.memory_bytes) <= placement.table_bytes
    placement = place_tables([table(1e9)], EIGHT, samples=65536)
    assert set(plans(placement)) == {"row_wise", "column_wise"}
    assert set(placement.refused) == {"table_wise", "data_parallel"}
    assert "it needs 477 GiB on the fullest GPU, but a GPU has 68 GiB" in placement.refused["data_parallel"]


def test_tables_that_leave_no_room_are_shared_or_the_large_ones_go_first() -> None:
    # Nine tables of 0.6 GiB, 1 GiB on each of eight GPUs: one is left over.
    rows = 0.6 * GIB / 4 / 64
    tables = [table(rows, name=f"t{index}") for index in range(9)]
    placement = place_tables(tables, EIGHT, samples=65536, table_bytes=GIB)
    assert "1 table(s), 't8' among them, found no GPU with enough left of its 1 GiB" in placement.refused["table_wise"]
    assert all(max(plan.memory_bytes) <= GIB for plan in placement.plans)
    assert {"row_wise", "column_wise"} <= set(plans(placement))

    # Rooms of 1 GiB. By time, the two hot small tables go apart, and then 0.9 GiB fits nowhere.
    def of(size_gib: float, pooling: float) -> EmbeddingTable:
        return table(size_gib * GIB / 4 / 64, pooling=pooling)

    tables = [of(0.2, 100), of(0.2, 100), of(0.9, 1)]
    (plan,) = place_tables(tables, "2xL4", samples=65536, kinds=["table_wise"], table_bytes=GIB).plans
    assert plan.assignments[0].gpu == plan.assignments[1].gpu != plan.assignments[2].gpu


def test_the_links_that_a_user_knows_decide() -> None:
    # On eight GPUs an all-reduce of a table's 49 MiB puts 2 x 7/8 of that on each link. The vectors of the whole table,
    # there and back, put 2 x 7 x 2 MiB on the link of one GPU, vectors of its columns an eighth of it on all links.
    fast, slow = (
        place_tables([table(2e5)], EIGHT, samples=65536, interconnect=Interconnect(intra_node_bytes_per_second=speed))
        for speed in (1e15, 1e8)
    )
    assert fast.best.name == "row_wise"  # eight GPUs share the look-ups, and sending is free
    assert slow.best.name == "column_wise"
    sent = 2 * 7 / 8 * 2e5 * 64 * 4
    assert plans(slow)["data_parallel"].communication_seconds == pytest.approx(
        OVERLAP_COSTS.slowdown * sent / 1e8, rel=1e-3
    )
    sent = 2 * 7 * 8192 * 64 * 4 + 7 * 8192 * 21 * 8
    assert plans(slow)["table_wise"].communication_seconds == pytest.approx(
        OVERLAP_COSTS.slowdown * sent / 1e8, rel=1e-3
    )


def test_infeasible_tables_are_named_and_the_optimizer_decides_what_fits() -> None:
    # 2e9 x 64 x 4 bytes = 477 GiB, twice that for Adam; eight times 85 % of 24 GiB = 163 GiB.
    with pytest.raises(InfeasiblePlanError) as raised:
        place_tables([table(2e9, name="users")], "8xL4", samples=1024, optimizer="adam")
    said = str(raised.value)
    assert "the 1 table(s) fits on 8xL4: they need 477 GiB and 954 GiB for the optimizer" in said
    assert "8 GPU(s) with 20.4 GiB for tables each have 163 GiB" in said
    assert "row_wise: it needs 179 GiB on the fullest GPU" in said
    assert "Take more or larger GPUs" in said
    size = 0.9 * TABLE_SHARE * 80 * GIB
    single = [table(size / 4 / 64)]
    whole = {
        name: "table_wise" in plans(place_tables(single, EIGHT, samples=1024, optimizer=name))
        for name in ("sgd", "row_wise_adagrad", "adagrad", "adam")
    }
    assert whole == {"sgd": True, "row_wise_adagrad": True, "adagrad": False, "adam": False}


@pytest.mark.parametrize("gpus", ["2xA100-SXM-80GB", "2xL4"])
def test_the_best_plan_is_near_the_best_of_all(gpus: str) -> None:
    tables = [table(2e6, 128, 50), table(3e3, 16, 1), table(4e5, 64, 10)]
    ways: list[tuple[str, int | None]] = [
        ("table_wise", 0),
        ("table_wise", 1),
        ("row_wise", None),
        ("column_wise", None),
        ("data_parallel", None),
    ]
    best = min(
        sharded_step(
            [Assignment(embedding, *way) for embedding, way in zip(tables, chosen, strict=True)], gpus, samples=8192
        ).seconds
        for chosen in product(ways, repeat=3)
    )
    assert best * (1 - 1e-9) <= place_tables(tables, gpus, samples=8192).best.seconds <= 1.1 * best


sizes = st.builds(table, st.integers(1, 5 * 10**6), st.integers(1, 256), st.integers(1, 100))


@settings(max_examples=25, deadline=None)
@given(tables=st.lists(sizes, min_size=1, max_size=6), gpus=st.sampled_from(["L40S", "2xL4", EIGHT, "2x4xH100"]))
def test_every_plan_fits_and_none_is_faster_than_the_best(tables: list[EmbeddingTable], gpus: str) -> None:
    placement = place_tables(tables, gpus, samples=4096, optimizer="row_wise_adagrad")
    for plan in placement.plans:
        assert max(plan.memory_bytes) <= placement.table_bytes
        assert [assignment.table for assignment in plan.assignments] == tables
        assert len(plan.gpu_seconds) == layout_of(gpus).count
        assert plan.imbalance >= 1 - 1e-12
        assert placement.best.seconds <= plan.seconds
        assert plan.time.low <= plan.seconds <= plan.time.high


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"kinds": ["diagonal"]}, r"kinds=\['diagonal'\]; expected at least one of table_wise, row_wise"),
        ({"kinds": []}, r"kinds=\[\]; expected at least one of"),
        ({"kinds": "row_wise"}, "kinds='row_wise'; expected at least one of .* in a list"),
        ({"table_bytes": 0.0}, "table_bytes=0.0; expected bytes above 0"),
        ({"optimizer": "lion"}, "optimizer='lion' is not known"),
        ({"samples": 7}, r"samples=7 for the 8 GPU\(s\)"),
        ({"layout": "8x8"}, "8x8"),
    ],
)
def test_invalid_argument_is_named(words: dict[str, object], problem: str) -> None:
    given = {"tables": [table(1000)], "layout": EIGHT, "samples": 1024} | words
    with pytest.raises((InvalidArgumentError, LookupError), match=problem):
        place_tables(**given)  # type: ignore[arg-type]


def test_small_tables_are_copied_together() -> None:
    # One copied table pays for the latency of an all-reduce, which saves less than that in the all-to-alls; twenty do.
    tables = [table(4e7, dim=128, pooling=1) for _ in range(6)] + [table(500, dim=128, pooling=1) for _ in range(20)]
    best = place_tables(tables, EIGHT, samples=65536).best
    copied = [assignment.kind for assignment in best.assignments[6:]].count("data_parallel")
    assert copied > 10
    whole = place_tables(tables, EIGHT, samples=65536, kinds=["table_wise", "row_wise", "column_wise"]).best
    assert best.seconds < 0.9 * whole.seconds
