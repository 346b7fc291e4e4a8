"""`shard` on a recorded DLRM."""

from pathlib import Path

import pytest
import torch

import lightning_predict as lp
from lightning_predict.embeddings.placement import place_tables
from lightning_predict.embeddings.tables import EmbeddingTable
from tests.cli.conftest import Profile, Run
from tests.workloads.recommendation import Dlrm


@pytest.fixture(scope="module")
def dlrm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step of 512 samples with four tables of 15.3 GiB each."""
    with torch.device("meta"):
        model = Dlrm(tables=4, rows=64_000_000, width=64, bottom=(16,), top=(16,))
        dense, indices = torch.empty(512, 16), torch.zeros(4, 512, 20, dtype=torch.int64)
    path = tmp_path_factory.mktemp("trace") / "dlrm.json.gz"
    lp.capture(lambda: model(dense, indices).sum().backward(), samples_per_step=512).save(str(path))
    return path


def test_shard_prints_the_plans_of_place_tables(dlrm: Path, run: Run) -> None:
    ran = run("shard", dlrm, "--gpus", "8xA100-SXM-80GB, 4xT4", "--optimizer", "row_wise_adagrad")
    assert (ran.code, ran.err) == (0, "")
    table, reasons, placement = ran.out.split("\n\n")
    head, _, *rows = table.splitlines()
    assert head.split("  ")[0] == "layout"
    names = [row.split()[:2] for row in rows]
    assert {tuple(name) for name in names} >= {("8xA100-SXM-80GB", "table_wise"), ("8xA100-SXM-80GB", "row_wise")}
    assert "No sharding of the 4 table(s) fits on 4xT4: they need 61 GiB and 0.954 GiB for the optimizer" in reasons
    assert "8xA100-SXM-80GB, data_parallel: it needs 123 GiB on the fullest GPU" in reasons
    lines = placement.splitlines()
    assert lines[0].startswith("Tables on 8xA100-SXM-80GB, ")
    assert [line.split()[:4] for line in lines[3:]] == [[f"tables.{i}", "64,000,000", "64", "20.0"] for i in range(4)]
    answer = run("shard", dlrm, "--gpus", "2xA100-SXM-80GB", "--kinds", "row_wise,table_wise", "--json").json
    tables = [EmbeddingTable(rows=64_000_000, dim=64, pooling=20, name=f"tables.{i}") for i in range(4)]
    expected = place_tables(tables, "2xA100-SXM-80GB", samples=1024, kinds=["row_wise", "table_wise"])
    layout = answer["layouts"]["2xA100-SXM-80GB"]
    assert [(plan["name"], plan["seconds"]) for plan in layout["plans"]] == [
        (plan.name, plan.seconds) for plan in expected.plans
    ]
    assert layout["reason"] == expected.reason
    assert layout["plans"][0]["samples"] == 1024  # 512 on each GPU
    assert answer["problems"] == {}


def test_shard_takes_memory_of_tables(dlrm: Path, run: Run) -> None:
    words = ["shard", dlrm, "--gpus", "8xH100-SXM-80GB", "--json"]
    roomy, narrow = (run(*words, "--table-gib", size).json["layouts"]["8xH100-SXM-80GB"] for size in ("60", "15"))
    assert (roomy["table_bytes"], narrow["table_bytes"]) == (60 * 2**30, 15 * 2**30)
    assert "table_wise" in narrow["refused"]  # 64e6 x 64 x 4 bytes are 15.3 GiB
    assert "table_wise" not in roomy["refused"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--gpus", "0xT4"], "The layout '0xT4' has 1 machine(s) of 0 GPU(s)"),
        (["--gpus", "3xNOPE"], "In the layout '3xNOPE'"),
        (["--gpus", ","], "gpus is empty; name at least one layout"),
        (["--gpus", "2xT4"], "No sharding of the 4 table(s) fits on 2xT4: they need 61 GiB"),
        (["--kinds", "diagonal"], "--kinds ['diagonal']; expected at least one of table_wise, row_wise"),
        (["--optimizer", "lion"], 'Invalid value "lion" for --optimizer. Choose from: "sgd", "row_wise_adagrad"'),
        (["--table-gib", "0"], "table_bytes=0.0; expected bytes above 0"),
    ],
)
def test_shard_rejects_invalid_options(options: list[str], problem: str, dlrm: Path, run: Run) -> None:
    ran = run("shard", dlrm, *options)
    assert (ran.code, ran.out) == (2, "")
    assert problem in ran.err


def test_shard_names_assumed_network(dlrm: Path, run: Run, profile: Profile) -> None:
    fast = ("--profile", profile("links.network_gbps = 1600"))
    named, priced, own = (
        run("shard", dlrm, "--gpus", layout, *more)
        for layout, more in (("2xp4d.24xlarge", ()), ("2x8xA100-SXM-40GB", ()), ("2x8xA100-SXM-40GB", fast))
    )
    assert "2x8xA100-SXM-40GB: Network: 400 Gbit/s between machines, as in p4d.24xlarge (EFA v1, 4x100;" in named.out
    assert "as in p4d.24xlarge, whose price is used," in priced.out
    assert "between machines" not in own.out
    table = [text.out.split("\n\n")[0] for text in (named, priced, own)]
    assert table[0] == table[1] != table[2]
    assert all(len(line) <= 120 for line in own.out.splitlines())


def test_shard_needs_tables(trace: Path, run: Run) -> None:
    assert "The trace has no look-up of an embedding table" in run("shard", trace).err


def test_shard_writes_a_plan_that_predict_reads(dlrm: Path, run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    ran = run("shard", dlrm, "--gpus", "4xA100-SXM-80GB", "--output", plan)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith(f"Written: {plan}\n")
    assert "Critical path of a step on 4xA100-SXM-80GB, " in ran.out
    whole = min(float(line.split()[-1]) for line in ran.out.splitlines() if line.startswith("4xA100-SXM-80GB  "))
    words = ("predict", dlrm, "--gpus", "4xA100-SXM-80GB", "--strategy", f"embedding={plan}", "--json")
    (prediction,) = run(*words).json["predictions"]
    assert 1000 * prediction["iteration_seconds"] == pytest.approx(whole, rel=5e-3)  # three digits are printed


def test_skew_of_profile_applies_to_shard_and_predict(dlrm: Path, run: Run, tmp_path: Path, profile: Profile) -> None:
    skews = ("skew = 0", "skew = 1.2")
    shard = ("shard", dlrm, "--gpus", "4xA100-SXM-80GB", "--kinds", "row_wise", "--json")
    (even,), (uneven,) = (
        run(*shard, "--profile", profile(skew)).json["layouts"]["4xA100-SXM-80GB"]["plans"] for skew in skews
    )
    assert even["compute_seconds"] > uneven["compute_seconds"]
    predict = ("predict", dlrm, "--gpus", "4xA100-SXM-80GB", "--strategy", "embedding=row_wise", "--json")
    (even,), (uneven,) = (run(*predict, "--profile", profile(skew)).json["predictions"] for skew in skews)
    assert even["iteration_seconds"] > uneven["iteration_seconds"]
