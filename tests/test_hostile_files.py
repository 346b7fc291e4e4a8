"""No file brings anything but our own errors: mutated bytes of every kind of file that is read."""

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.study import read_study
from lightning_predict.base.errors import LightningPredictError
from lightning_predict.cost.current_prices import write_prices
from lightning_predict.cost.offers import load_offers, read_offers
from lightning_predict.embeddings.step import Assignment, plan_document, read_sharding_plan, sharded_step
from lightning_predict.embeddings.tables import EmbeddingTable
from lightning_predict.hardware.catalogue import load_catalogue
from lightning_predict.hardware.user_gpus import read_gpus
from lightning_predict.kernels.families.collective import bundled_curves
from lightning_predict.layouts.strategy import parse_strategy
from lightning_predict.observe.ledger_file import SavedLedger, read_ledger, save_ledger
from lightning_predict.observe.meters import Use
from lightning_predict.planning.files import read_problem
from lightning_predict.record.imports import import_trace
from lightning_predict.record.named_models.names import parse_model_name
from lightning_predict.record.trace import Kernel, Memory, Operation, Parameter, TensorInfo, Trace
from lightning_predict.regression.runs import read_runs
from lightning_predict.run.history import read_history
from lightning_predict.weights.files import parse_manifest, read_weights, write_weights
from tests.cost.test_offers import GOOD
from tests.cost.test_price_files import CSV_OFFERS, TWO_OFFERS
from tests.hardware.test_catalogue import write_catalogue
from tests.record.kineto_files import steps
from tests.record.kineto_files import write as write_profile
from tests.regression.test_run_tables import OWN
from tests.weights.example import publish, weights

NASTY = (  # Pieces that break careless readers: too long, too deep, of another kind, not text
    b"9" * 400,
    b"-" + b"9" * 19,
    b"1e400",
    b"-1",
    b"0",
    b"0.5",
    b"null",
    b"true",
    b"NaN",
    b".inf",
    b'""',
    b'"\\ud800"',
    b"[]",
    b"{}",
    b"[" * 5000,
    b"[" * 60 + b"]" * 60,
    b"*a",
    b"&a [*a]",
    b"!!bool maybe",
    b"!!timestamp x",
    b"<<: 3",
    b"\x00",
    b"\xff",
    b"\x1b[31m",
    b'"',
    b"\n",
)

TOKEN = re.compile(rb'"[^"]*"|[\w.+-]+|[^\w\s]')


@st.composite
def mutations(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """One to three edits, each of a token (a number, a string, a bracket) or of single bytes."""
    edits = draw(
        st.lists(
            st.tuples(st.floats(0, 1), st.sampled_from(["token", "cut", "byte", "insert"]), st.sampled_from(NASTY)),
            min_size=1,
            max_size=3,
        )
    )

    def mutate(content: bytes) -> bytes:
        for share, kind, piece in edits:
            at = int(share * max(len(content) - 1, 0))
            if kind == "token" and (token := TOKEN.search(content, at)):
                content = content[: token.start()] + piece + content[token.end() :]
            elif kind == "cut":
                content = content[:at] + content[at + 1 + len(piece) % 7 :]
            elif kind == "byte":
                content = content[:at] + piece[:1] + content[at + 1 :]
            else:
                content = content[:at] + piece + content[at:]
        return content

    return mutate


@dataclass(frozen=True)
class Reader:
    """A kind of file."""

    name: str  # Of the file
    write: Callable[[Path], object]  # Writes a good one, with other needed files, into a folder
    read: Callable[[Path], object]  # Reads it


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


TENSOR = TensorInfo(shape=(8, 4), dtype="float32", id=1, device="cuda")
KERNEL = Kernel(
    name="gemm",
    seconds=1e-5,
    grid=(1, 2, 3),
    block=(128, 1, 1),
    registers_per_thread=32,
    shared_memory_bytes=1024,
    stream=7,
    start_seconds=0.5,
    launch_start_seconds=0.4,
    launch_seconds=1e-6,
)
TRACE = Trace(
    operations=(
        Operation(
            name="aten::mm",
            phase="forward",
            inputs=(TENSOR, TENSOR),
            outputs=(TENSOR,),
            arguments={"alpha": [1, 2.5]},
            module="net.0",
            kernels=(KERNEL,),
            host_start_seconds=0.1,
            host_seconds=0.2,
        ),
    ),
    device="cuda",
    recorder="profiler",
    gpu_reported_name="Tesla T4",
    gpu_memory_bytes=2**34,
    step_seconds=(0.1, 0.2),
    parameters=(Parameter(name="w", shape=(8, 4), dtype="float32"),),
    memory=Memory(optimizer_state_bytes=7),
    samples=8,
    software={"torch": "2.13"},
)
HISTORY = {
    "fingerprint": "f",
    "gpu": "T4",
    "samples": 8,
    "step_seconds": 0.5,
    "predicted_seconds": 10,
    "actual_seconds": 11.5,
    "date": "2026-11-01",
    "model": None,
    "num_gpus": 1,
}
JOBS = """
nodes: 2
budget_usd: 60
quotas: {box: 1}
formulation: {preempts: false}
machines:
  - {name: box, gpu: A10, num_gpus: 4, usd_per_hour: 3.0}
jobs:
  - &a {name: a, hours: {box: {1: 4.0, 2: 2.2}}, deadline_hours: 8, tardiness_usd_per_hour: 2}
  - {<<: *a, name: b}
"""
CURVES = {
    "message_bytes": [1, 2],
    "microseconds": {"T4": {"all_reduce": {"2": [1.0, 2.0], "4": [2.0, 3.0]}}},
    "half_width_90": 0.2,
}


def profile(folder: Path) -> None:
    links: list[dict[str, Any]] = [
        {"ph": "s", "cat": "fwdbwd", "id": 1, "pid": 0, "tid": 1, "ts": 10.0},
        {"ph": "f", "cat": "fwdbwd", "id": 1, "pid": 0, "tid": 2, "ts": 50.0},
    ]
    write_profile(folder / "k.json", [*steps([2, 1]), *links], distributedInfo={"world_size": 2})


OWN_GPUS = '[gpu.MINE]\nlike = "T4"\nreported_names = ["NVIDIA Mine"]\nmemory_gib = 48\nfloat16_tflops = 9.5\n'

TABLE = EmbeddingTable(rows=10, dim=4, name="tables.0")
PLAN = plan_document(sharded_step([Assignment(TABLE, "row_wise")], "2xT4", samples=2), "sgd")
KEPT = SavedLedger(run="a1b2", use=Use(3600.0, {"usd": (4.1, 3600.0)}), date="2026-11-23T12:00:00+00:00", jobs={})

DEEPSPEED = {
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": "auto",
    "communication_data_type": "fp32",
    "optimizer": {"type": "AdamW"},
    "compile": {"disable": True},
}
ACCELERATE = "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"
ARGUMENTS = "micro_batch_size: 2\ngradient_accumulation_steps: 4\nfsdp: [full_shard]\ntensor_parallel_size: 2\n"
NEMO = "trainer: {devices: 8, num_nodes: 2}\nmodel: {tensor_model_parallel_size: 2, optim: {name: fused_adam}}\n"
SCRIPT = "TP=2\nargs=(--tensor-model-parallel-size $TP --micro-batch-size 1 --global-batch-size 8)\n"
STATE = {"global_step": 10, "train_batch_size": 4, "log_history": [{"train_runtime": 5.5}]}

READERS = {
    "trace": Reader("t.json", lambda folder: TRACE.save(folder / "t.json"), lambda f: Trace.load(f / "t.json")),
    "packed trace": Reader(
        "t.json.gz", lambda folder: TRACE.save(folder / "t.json.gz"), lambda f: Trace.load(f / "t.json.gz")
    ),
    "profile": Reader("k.json", profile, lambda folder: import_trace(folder / "k.json")),
    "own prices": Reader("p.yaml", text("p.yaml", TWO_OFFERS), lambda folder: read_offers(folder / "p.yaml")),
    "own prices as CSV": Reader("p.csv", text("p.csv", CSV_OFFERS), lambda folder: read_offers(folder / "p.csv")),
    "price lists": Reader("o.toml", text("o.toml", GOOD), lambda folder: read_offers(folder / "o.toml")),
    "fetched prices": Reader(
        "current.json",
        lambda folder: write_prices(folder / "current.json", load_offers()[:3]),
        lambda folder: read_offers(folder / "current.json"),
    ),
    "jobs": Reader("jobs.yaml", text("jobs.yaml", JOBS), lambda folder: read_problem(folder / "jobs.yaml")),
    "study": Reader(
        "s.yaml", text("s.yaml", "nodes: [2]\nseeds: [2]\nerror: 0.1\n"), lambda folder: read_study(folder / "s.yaml")
    ),
    "sharding plan": Reader(
        "plan.json",
        text("plan.json", json.dumps(PLAN)),
        lambda folder: read_sharding_plan(folder / "plan.json", [TABLE]),
    ),
    "ledger": Reader(
        "l.json", lambda folder: save_ledger(folder / "l.json", KEPT), lambda f: read_ledger(f / "l.json")
    ),
    "DeepSpeed": Reader(
        "d.json", text("d.json", json.dumps(DEEPSPEED)), lambda folder: parse_strategy(str(folder / "d.json"))
    ),
    "accelerate": Reader("a.yaml", text("a.yaml", ACCELERATE), lambda folder: parse_strategy(str(folder / "a.yaml"))),
    "training arguments": Reader(
        "h.yaml", text("h.yaml", ARGUMENTS), lambda folder: parse_strategy(str(folder / "h.yaml"))
    ),
    "NeMo": Reader("n.yml", text("n.yml", NEMO), lambda folder: parse_strategy(str(folder / "n.yml"))),
    "shell script": Reader("m.sh", text("m.sh", SCRIPT), lambda folder: parse_strategy(str(folder / "m.sh"))),
    "trainer state": Reader(
        "trainer_state.json",
        text("trainer_state.json", json.dumps(STATE)),
        lambda folder: read_runs(folder / "trainer_state.json", values={"gpu": "L4"}),
    ),
    "summary of W&B": Reader(
        "wandb-summary.json",
        text("wandb-summary.json", '{"_runtime": 9.5, "global_step": 10, "batch_size": 4}'),
        lambda folder: read_runs(folder / "wandb-summary.json", values={"gpu": "L4"}),
    ),
    "configuration of a model": Reader(
        "config.json",
        text("config.json", '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}'),
        lambda folder: parse_model_name(str(folder / "config.json")),
    ),
    "GPUs": Reader("ampere.toml", write_catalogue, load_catalogue),
    "own GPUs": Reader("gpus.toml", text("gpus.toml", OWN_GPUS), lambda folder: read_gpus(folder / "gpus.toml")),
    "sources of GPUs": Reader("sources.toml", write_catalogue, load_catalogue),
    "manifest": Reader(
        "manifest.json",
        lambda folder: publish(folder, "T4"),
        lambda folder: parse_manifest((folder / "manifest.json").read_text(errors="replace"), where="here"),
    ),
    "weights": Reader(
        "w.safetensors",
        lambda folder: write_weights(weights("T4"), folder / "w.safetensors"),
        lambda folder: read_weights(folder / "w.safetensors"),
    ),
    "collectives": Reader(
        "c.json", text("c.json", json.dumps(CURVES)), lambda folder: bundled_curves.__wrapped__(folder / "c.json")
    ),
    "runs": Reader("runs.csv", text("runs.csv", OWN), lambda folder: read_runs(folder / "runs.csv")),
    "history": Reader(
        "h.jsonl", text("h.jsonl", json.dumps(HISTORY) + "\n"), lambda folder: read_history(folder / "h.jsonl")
    ),
}


@pytest.mark.filterwarnings("ignore:.*these keys do not change")
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_the_good_file_is_read(reader: Reader, tmp_path: Path) -> None:
    reader.write(tmp_path)
    assert reader.read(tmp_path)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_mutated_file_is_read_or_refused_in_words(reader: Reader, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("any")
    reader.write(folder)
    path = folder / reader.name
    good = path.read_bytes()

    @settings(max_examples=60)
    @given(mutations())
    def read(mutate: Callable[[bytes], bytes]) -> None:
        path.write_bytes(mutate(good))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a line of the history is skipped with a warning
                reader.read(folder)
            words = ""
        except LightningPredictError as error:
            words = str(error)
        assert "\x1b" not in words

    read()


LONG = b"9" * 400
DEEP = b"[" * 100_000
HOSTILE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "DeepSpeed: a stage between": ("DeepSpeed", lambda good: good.replace(b'"stage": 2', b'"stage": 2.0')),
    "DeepSpeed: a list for a dtype": ("DeepSpeed", lambda good: good.replace(b'"fp32"', b'["fp32"]')),
    "NeMo: a list for a number": ("NeMo", lambda good: good.replace(b"parallel_size: 2", b"parallel_size: [2]")),
    "accelerate: a list for a table": (
        "accelerate",
        lambda good: good.replace(b"{fsdp_sharding", b"[{fsdp_sharding").replace(b"}", b"}]"),
    ),
    "trainer state: a text for the time": ("trainer state", lambda good: good.replace(b"5.5", b'"5.5"')),
    "trace: number that no float holds": (
        "trace",
        lambda good: good.replace(b'"step_seconds":[0.1', b'"step_seconds":[' + LONG),
    ),
    "trace: nested": ("trace", lambda good: good.replace(b'"software":', b'"software":' + DEEP)),
    "profile: correlation": ("profile", lambda good: good.replace(b'"correlation": 100', b'"correlation": []')),
    "profile: sizes": ("profile", lambda good: good.replace(b"[64, 64]", b"[64, [64]]")),
    "profile: sizes of another kind": ("profile", lambda good: good.replace(b"[64, 64]", b"true")),
    "profile: types": ("profile", lambda good: good.replace(b'["float", "float"]', b'[["float"], "float"]')),
    "profile: thread": ("profile", lambda good: good.replace(b'"tid": 1', b'"tid": {}')),
    "profile: time of a link": ("profile", lambda good: good.replace(b'"ts": 50.0}', b'"ts": "soon"}')),
    "profile: number of a link": ("profile", lambda good: good.replace(b'"id": 1,', b'"id": [1],')),
    "own prices: number": ("own prices", lambda good: good.replace(b"12.40", LONG)),
    "own prices: nested": ("own prices", lambda good: DEEP),
    "own prices: tag": ("own prices", lambda good: good.replace(b"12.40", b"!!bool maybe")),
    "price lists: number": ("price lists", lambda good: good.replace(b"1.5", LONG)),
    "price lists: nested": ("price lists", lambda good: b"a = " + DEEP),
    "jobs: number": ("jobs", lambda good: good.replace(b"60", LONG)),
    "jobs: nested": ("jobs", lambda good: DEEP),
    "manifest: nested": ("manifest", lambda good: DEEP),
    "runs: not UTF-8": ("runs", lambda good: good.replace(b"resnet", b"r\xe9snet")),
    "runs: long cell": ("runs", lambda good: good.replace(b"resnet", b"r" * 200_000)),
}


@pytest.mark.parametrize(("name", "change"), HOSTILE.values(), ids=HOSTILE)
def test_known_hostile_files_are_rejected(name: str, change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """They raised TypeError, ValueError, OverflowError, RecursionError, KeyError, UnicodeDecodeError or csv.Error."""
    reader = READERS[name]
    reader.write(tmp_path)
    path = tmp_path / reader.name
    good = path.read_bytes()
    assert change(good) != good
    path.write_bytes(change(good))
    with pytest.raises(LightningPredictError):
        reader.read(tmp_path)


@pytest.mark.parametrize("bad", [DEEP, b'{"step_seconds": ' + LONG + b"}"])
def test_a_hostile_line_of_the_history_is_skipped(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "h.jsonl"
    good = json.dumps(HISTORY).encode()
    path.write_bytes(good + b"\n" + bad + b"\n" + good + b"\n")
    with pytest.warns(UserWarning, match=r"h\.jsonl, line 2 .* The line is skipped"):
        assert len(read_history(path)) == 2
