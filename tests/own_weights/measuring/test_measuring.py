import csv
import gzip
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.training.tables import read_tables
from lightning_predict.base.errors import (
    CaptureError,
    InvalidArgumentError,
    MeasurementTableError,
    UnknownOperationError,
)
from lightning_predict.hardware import gpu
from lightning_predict.kernels.operations import network_spec, operation_names, operation_spec, shape_batch
from lightning_predict.own_weights import commands
from lightning_predict.own_weights.measuring import clock, order, run, typical_steps
from lightning_predict.own_weights.measuring.benchmarks import BENCHMARKS, draw_shapes, network_shapes
from lightning_predict.own_weights.measuring.clock import (
    SHAPE_SECONDS,
    GpuState,
    Timing,
    captured,
    read_state,
    repetitions_that_fit,
    time_call,
)
from lightning_predict.own_weights.measuring.order import FAMILY_ORDER, ShapeToMeasure, shapes_by_worth
from lightning_predict.own_weights.measuring.run import SECONDS_AROUND, estimate_seconds, measure
from lightning_predict.own_weights.measuring.typical_steps import measured_share
from lightning_predict.own_weights.training.tables import eager_rows, read_own_tables, split_rows, was_eager
from lightning_predict.own_weights.training.tuning import MIN_OWN_ROWS
from lightning_predict.record.recording import capture
from tests.gpu.test_peak_memory import step_on

CPU = torch.device("cpu")
ATTENTION = {"batch": 1, "heads": 4, "kv_heads": 2, "seq": 8, "head_dim": 4, "causal": 1}
CHANNELS = {"batch": 2, "in_channels": 4, "out_channels": 4, "groups": 4}
SETTINGS = {"kernel": 3, "stride": 2, "padding": 1, "dilation": 1}


def settings(*sides: str) -> dict[str, int]:
    return {f"{name}_{side}": value for side in sides for name, value in SETTINGS.items()}


TINY = {
    "linear": {"m": 8, "n": 16, "k": 4},
    "bmm": {"b": 2, "m": 8, "n": 16, "k": 4},
    "attention": ATTENTION,
    "eager_attention": {**ATTENTION, "kv_heads": 4},
    "conv1d": {**CHANNELS, "length": 8, "kernel_size": 3, "stride": 2, "padding": 1, "dilation": 1},
    "conv2d": {**CHANNELS, "height": 8, "width": 8, **settings("height", "width")},
    "conv3d": {**CHANNELS, "depth": 8, "height": 8, "width": 8, **settings("depth", "height", "width")},
    "conv_transpose2d": {**CHANNELS, "height": 8, "width": 8, **settings("height", "width")},
    **{
        name: {"batch": 2, "steps": 3, "input_size": 4, "hidden": 5, "layers": 2, "directions": 2}
        for name in ("lstm", "gru", "rnn")
    },
    "embedding_bag": {"bags": 4, "lookups": 3, "rows": 16, "dim": 8},
    **{
        name: {"batch": 1, "channels": 2, "height": 8, "width": 8, "kernel_size": 2, "stride": 2}
        for name in ("avg_pool2d", "max_pool2d")
    },
    **{name: {"parameters": 100, "fused": 1} for name in ("adam", "adamw", "sgd", "adagrad")},
    "cast": {"rows": 16, "cols": 32, "source_bytes": 4, "target_bytes": 2},
    "host_copy": {"size_bytes": 4096},
}
MATRIX = {"rows": 16, "cols": 32}


@pytest.mark.parametrize("operation", sorted(BENCHMARKS))
def test_every_operation_can_be_called_forward_and_backward(operation: str) -> None:
    calls = BENCHMARKS[operation].calls(dict(TINY.get(operation, MATRIX)), torch.float32, CPU)
    assert operation in calls
    for name, call in calls.items():
        assert call() is not None, name
        assert time_call(call, CPU, replays=2).eager_seconds > 0


def test_every_operation_has_a_benchmark_except_a_known_list() -> None:
    timed = {
        name
        for operation, benchmark in BENCHMARKS.items()
        for name in benchmark.calls(dict(TINY.get(operation, MATRIX)), torch.float32, CPU)
    }
    others = {name for name in operation_names() if operation_spec(name).units == "fabric"}
    others |= {"cholesky", "eig", "eigh", "fft", "lu", "matrix_exponential", "qr", "svd", "triangular_solve"}
    assert set(operation_names()) - timed == others | {
        "limited_transfer",
        "transfer",
        "vectorized",
        "stream",  # bounds other operations
        "column_sum",  # timed as sum
        "attention_dropout",
        "untranslated",
        "sparse_product",
        "embedding_bag_backward",
    }


@pytest.mark.parametrize("operation", sorted(BENCHMARKS))
def test_drawn_shapes_are_valid_shapes_and_repeat(operation: str) -> None:
    shapes = draw_shapes(operation, 50, seed=1)
    assert shapes == draw_shapes(operation, 50, seed=1)
    assert shapes != draw_shapes(operation, 50, seed=2)
    for words in shapes:
        assert shape_batch(operation, "float32", **words).bytes_moved[0] > 0


def test_shapes_of_networks_come_first_then_the_same_with_other_batch_sizes() -> None:
    known = network_shapes()["linear"]
    drawn = draw_shapes("linear", 2 * len(known), seed=0)
    assert sorted(map(str, drawn[: len(known)])) == sorted(map(str, known))
    layers = [(one["n"], one["k"]) for one in known]
    assert [(one["n"], one["k"]) for one in drawn[len(known) :]] != layers
    assert sorted((one["n"], one["k"]) for one in drawn[len(known) :]) == sorted(layers)
    assert not set(map(str, drawn[len(known) :])) <= set(map(str, known))


@pytest.mark.parametrize("operation", sorted(network_shapes()))
def test_shapes_of_networks_are_shapes_of_their_benchmark(operation: str) -> None:
    words = {tuple(shape) for shape in network_shapes()[operation]}
    assert words == {tuple(BENCHMARKS[operation].draw(random.Random(0)))}


def test_a_convolutions_calls_compute_its_gradients() -> None:
    calls = BENCHMARKS["conv2d"].calls(dict(TINY["conv2d"]), torch.float32, CPU)
    output, to_input, to_weight = (calls[f"conv2d{suffix}"]() for suffix in ("", "_backward_input", "_backward_weight"))
    assert isinstance(output, torch.Tensor)
    assert output.shape == (2, 4, 4, 4)
    assert isinstance(to_input, tuple)
    assert [None if part is None else tuple(part.shape) for part in to_input] == [(2, 4, 8, 8), None, None]
    assert isinstance(to_weight, tuple)
    assert [None if part is None else tuple(part.shape) for part in to_weight] == [None, (4, 1, 3, 3), None]


@pytest.mark.parametrize(("parameters", "tensors"), [(100, 24), (5, 5)])
def test_an_update_changes_as_many_parameters_as_asked_for(parameters: int, tensors: int) -> None:
    calls = BENCHMARKS["sgd"].calls({"parameters": parameters, "fused": 0}, torch.float32, CPU)
    optimizer = calls["sgd"]()
    assert isinstance(optimizer, torch.optim.SGD)
    updated = optimizer.param_groups[0]["params"]
    assert (sum(tensor.numel() for tensor in updated), len(updated)) == (parameters, tensors)
    assert optimizer.param_groups[0]["foreach"] is True


def test_the_table_has_the_columns_of_the_public_ones_and_one_row_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lightning_predict.own_weights.measuring.order.draw_shapes",
        lambda operation, count, seed: [dict(TINY["conv2d"])],
    )
    done = measure(tmp_path, operations=["conv2d"], dtypes=["float32"], shapes=1, device="cpu", gpu="T4")
    assert (done.rows, done.skipped) == (3, ())
    with gzip.open(done.files[0], "rt") as file:
        rows = list(csv.DictReader(file))
    assert [row["op"] for row in rows] == ["conv2d", "conv2d_backward_input", "conv2d_backward_weight"]
    assert (rows[0]["gpu"], rows[0]["kernel_height"]) == ("T4", "3")
    assert rows[0]["dilation_height"] == "1"
    assert float(rows[0]["latency_ms"]) > 0
    assert (rows[0]["warm_ms"], rows[0]["timed"]) == ("", "eager")  # no graphs on the CPU


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_without_cuda_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="No CUDA device here to measure on"):
        measure(tmp_path)


@pytest.mark.parametrize(("dtypes", "shapes"), [(["half"], 1), (["float32"], 0)])
def test_bad_arguments_are_named(tmp_path: Path, dtypes: list[str], shapes: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected dtypes out of \['float32', 'tf32'"):
        measure(tmp_path, dtypes=dtypes, shapes=shapes, device="cpu")


def test_table_of_an_earlier_release_and_operation_without_a_benchmark_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownOperationError, match=r"No benchmark for 'hough'; there are: adagrad, adam, .*softmax"):
        measure(tmp_path, operations=["hough"], device="cpu")
    with gzip.open(tmp_path / "own_relu.csv.gz", "wt") as file:
        file.write("gpu,op,dtype,rows,cols,latency_ms,warm_ms,source\nT4,relu,float32,1,16,1,1,own\n")
    with pytest.raises(MeasurementTableError, match=r"has other columns .* Measure into another folder"):
        measure(tmp_path, operations=["relu"], dtypes=["float32"], shapes=1, device="cpu")


def by_graph(call: object, device: torch.device, **_: object) -> Timing:
    """A timing as on a GPU: 1 ms of the device, 3 ms with the launches."""
    return Timing(flushed_seconds=1e-3, warm_seconds=0.8e-3, eager_seconds=3e-3)


def eager_alone(call: object, device: torch.device, **_: object) -> Timing:
    return Timing(flushed_seconds=None, warm_seconds=None, eager_seconds=3e-3, reason="it waits for the device")


def rows_of(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def test_training_takes_graph_timings_or_the_warm_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "time_call", by_graph)
    measure(tmp_path, operations=["gelu"], dtypes=["float32"], shapes=9, device="cpu", gpu="T4", is_trial=True)
    group, backward = read_tables(tmp_path)
    assert (group.gpu, group.source, group.batch.operation) == ("T4", "own", "gelu")
    assert backward.batch.operation == "gelu_backward"
    assert group.seconds.tolist() == [0.8e-3] * len(group.seconds)
    assert group.floor_seconds == 0
    assert eager_rows(tmp_path) == 0
    assert was_eager({"latency_ms": "1", "warm_ms": "", "eager_ms": "1"})
    assert not was_eager({"latency_ms": "1", "warm_ms": "0.9", "eager_ms": "1"})
    assert not was_eager({"latency_ms": "1"})  # a public table


def test_training_refuses_tables_without_graph_timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "draw_shapes", lambda operation, count, seed: [dict(MATRIX)])
    monkeypatch.setattr(run, "time_call", eager_alone)
    done = measure(tmp_path, operations=["gelu"], dtypes=["float32"], device="cpu", gpu="T4")
    assert len(done.eager) == done.rows == 2
    assert done.eager[0] == "gelu float32 {'rows': 16, 'cols': 32}: it waits for the device"
    assert {row["timed"] for row in rows_of(done.files[0])} == {"eager"}
    assert eager_rows(tmp_path) == 2
    with pytest.raises(MeasurementTableError, match=r"All 2 rows of own_gelu.csv.gz were timed as ordinary calls"):
        read_tables(tmp_path)
    monkeypatch.setattr(run, "time_call", by_graph)
    measure(tmp_path, operations=["silu"], dtypes=["float32"], device="cpu", gpu="T4")
    assert {group.batch.operation for group in read_tables(tmp_path)} == {"silu", "silu_backward"}


def test_a_second_run_goes_on_where_the_first_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "time_call", by_graph)
    asked = partial(
        measure, operations=["relu", "gelu"], dtypes=["float32", "float16"], shapes=6, device="cpu", is_trial=True
    )
    seconds = iter(range(1000))
    # The clock is read once before the first shape and once before each: 5 begin within 5.5 s.
    first = asked(tmp_path, minutes=5.5 / 60, clock=lambda: float(next(seconds)))
    # 2 operations, 2 dtypes, 2 passes (a backward pass comes after what networks learn) and at most 6 shapes, of which
    # some are one shape with the batch sizes of a processor.
    total = first.left + 5
    assert 40 < total <= 48
    whole = asked(tmp_path)
    assert whole.left == 0
    assert first.rows + whole.rows == sum(len(rows_of(path)) for path in whole.files)
    again = asked(tmp_path)
    assert (again.rows, again.known) == (0, total - len(again.skipped))
    once = asked(tmp_path / "once")
    for one, other in zip(whole.files, once.files, strict=True):
        assert rows_of(one) == rows_of(other)


def test_what_networks_learn_comes_first_and_the_farthest_shapes_before_others() -> None:
    shapes = shapes_by_worth(["linear", "cast"], ["float32", "bfloat16"], 100, seed=0)
    assert {(one.operation, one.dtype, one.calls) for one in shapes[:100]} == {("linear", "bfloat16", ("linear",))}
    assert [(shape.operation, shape.dtype, shape.calls) for shape in shapes[100:103]] == [
        ("linear", "float32", ("linear_backward",)),  # no network learns it
        ("linear", "bfloat16", ("linear_backward",)),
        ("cast", "float32", ("cast",)),  # if bytes alone decide, all dtypes are one
    ]
    counts = Counter((name, shape.dtype) for shape in shapes for name in shape.calls)
    assert counts == {
        **{(name, dtype): 100 for name in ("linear", "linear_backward") for dtype in ("float32", "bfloat16")},
        ("cast", "float32"): 100,
    }


def test_repetitions_fit_the_seconds_of_a_shape_that_is_left_out_if_too_long() -> None:
    assert repetitions_that_fit(1e-3, replays=20, shape_seconds=2.0) == 20
    assert repetitions_that_fit(0.1, replays=20, shape_seconds=2.0) == 6  # 2 s, three kinds, 0.1 s each
    assert repetitions_that_fit(1.9, replays=20, shape_seconds=2.0) == 3
    assert repetitions_that_fit(0.0, replays=20, shape_seconds=2.0) == 20
    large = shapes_by_worth(["linear"], ["float32"], 50, seed=0)[0]
    words = {"m": 2**17, "n": 2**17, "k": 2**17}  # 4.5e15 FLOP, 550 s at 8.1 TFLOP/s
    reason = run.reason_too_long(replace(large, parameters=words), gpu("T4"), 2.0)
    assert reason is not None
    assert reason.startswith("one call takes at least 5")
    assert reason.endswith("s, over the limit of 2 s a shape")
    shapes = shapes_by_worth(["linear"], ["float32"], 50, seed=0)
    slow, fast = (estimate_seconds(shapes, gpu(name)) for name in ("T4", "H100-SXM-80GB"))
    assert slow > fast > 0
    # Forward and backward, each at most its limit and its overhead.
    assert slow <= 50 * 2 * (SHAPE_SECONDS + SECONDS_AROUND)
    assert estimate_seconds(shapes, gpu("T4"), shape_seconds=0.01) < slow


@pytest.mark.parametrize(("minutes", "shape_seconds"), [(0.0, 2.0), (None, 0.0)])
def test_no_time_at_all_is_refused(tmp_path: Path, minutes: float | None, shape_seconds: float) -> None:
    with pytest.raises(InvalidArgumentError, match="expected times above 0"):
        measure(tmp_path, minutes=minutes, shape_seconds=shape_seconds, device="cpu")


class FakeGraph:
    """A CUDA graph whose capture is invalidated, as one that waits for the device is."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def capture_begin(self, pool: object) -> None:
        self.events.append(f"begin {pool}")

    def capture_end(self) -> None:
        self.events.append("end")
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture\nmore")

    def reset(self) -> None:
        self.events.append("reset")


class FakeGenerator:
    def __init__(self, events: list[str]) -> None:
        self.events = events

    def clone_state(self) -> str:
        return "a copy"

    def graphsafe_set_state(self, state: str) -> None:
        self.events.append(f"random numbers from {state}")


@pytest.mark.parametrize("fails_in_call", [True, False])
def test_failed_capture_is_cleaned_up(fails_in_call: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = FakeGraph()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch, "rand", lambda *size, device: None)
    monkeypatch.setattr(torch.cuda, "default_generators", [FakeGenerator(graph.events)])

    def noted(name: str) -> Callable[[int, object], None]:
        return lambda index, pool: graph.events.append(f"{name} {index} {pool}")

    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, noted(name), raising=False)

    def call() -> None:
        if fails_in_call:
            raise RuntimeError("it waits for the device")

    found, reason = captured(call, torch.device("cuda", 0))
    assert found is None
    assert reason == (
        "it waits for the device"
        if fails_in_call
        else "CUDA error: operation failed due to a previous error during capture"
    )
    assert graph.events == [
        "begin (0, 7)",
        "end",
        "_cuda_endAllocateToPool 0 (0, 7)",
        "_cuda_releasePool 0 (0, 7)",
        "reset",
        "random numbers from a copy",
    ]


def test_a_gpu_that_a_failed_capture_left_unusable_ends_the_run_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*size: int, device: torch.device) -> None:
        raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "default_generators", [FakeGenerator([])])
    monkeypatch.setattr(torch, "rand", broken)
    with pytest.raises(CaptureError, match=r"left CUDA unusable .* Run the command again: it goes on where it stopped"):
        captured(lambda: None, torch.device("cuda", 0))


class FakeNvml:
    """The driver's management library on a card that its power limit holds back."""

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        handle._obj.value = 77
        return 0 if uuid == b"GPU-1234" else 6

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, value: Any) -> int:  # noqa: N802
        assert (handle.value, kind.value) == (77, 1)
        return self._gives(value, 1095)

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, value: Any) -> int:  # noqa: N802
        return self._gives(value, 1410)

    def nvmlDeviceGetPowerUsage(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._gives(value, 399_500)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, value: Any) -> int:  # noqa: N802
        return 3  # not supported

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._gives(value, 0x1 | 0x4 | 0x40)  # idle says nothing of a load; the power cap; the temperature

    def _gives(self, value: Any, number: int) -> int:
        value._obj.value = number
        return 0


@pytest.mark.parametrize("uuid", ["1234", "of another"])
def test_gpu_state_is_read_from_nvml(uuid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_library", FakeNvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuid))
    state = read_state(torch.device("cuda", 0))
    known = GpuState(
        clock_hz=1.095e9,
        highest_clock_hz=1.41e9,
        power_watts=399.5,
        power_limit_watts=None,
        held_back_by=("power", "temperature"),
    )
    assert state == (known if uuid == "1234" else GpuState())


def test_the_state_is_unknown_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    clock._library.cache_clear()
    monkeypatch.setattr("ctypes.CDLL", missing)
    assert read_state(torch.device("cuda", 0)) == GpuState()
    clock._library.cache_clear()


def within(minutes: float, name: str) -> list[ShapeToMeasure]:
    """Simulate the shapes that a run of some minutes measures, by the estimate of seconds."""
    record = gpu(name)
    due = shapes_by_worth(
        tuple(BENCHMARKS),
        ("float32", "tf32", "float16", "bfloat16"),
        None,
        seed=0,
        is_possible=lambda one: run.reason_too_long(one, record, 2.0) is None,
    )
    spent, done = 0.0, []
    for shape in due:
        spent += estimate_seconds([shape], record)
        if spent > 60 * minutes:
            break
        done.append(shape)
    return done


@pytest.fixture(scope="module")
def nine_minutes() -> list[ShapeToMeasure]:
    return within(9, "H100-SXM-80GB")


def enough_families(measured: list[ShapeToMeasure]) -> set[str]:
    rows: Counter[str] = Counter()
    for shape in measured:
        family = network_spec(shape.calls[0], shape.dtype)
        if family is not None:
            columns = shape_batch(shape.operation, shape.dtype, **shape.parameters).columns
            rows[family.name] += len(shape.calls) * bool(split_rows(columns, seed=0).fitted[0])
    return {name for name, count in rows.items() if count >= MIN_OWN_ROWS}


def test_nine_minutes_give_every_family_of_worth_enough_rows(nine_minutes: list[ShapeToMeasure]) -> None:
    assert {"convolution_tensor", "matmul_half", "vector"} <= set(FAMILY_ORDER) <= enough_families(nine_minutes)


@pytest.mark.parametrize(("model", "share"), [("resnet50", 0.8), ("gpt2", 0.7)])
def test_nine_minutes_measure_most_of_the_time_of_a_step(
    model: str, share: float, nine_minutes: list[ShapeToMeasure]
) -> None:
    """Times by a tuned network, by a factor, or through an operation with one of both."""
    rows = Counter(f"{name}/{shape.dtype}" for shape in nine_minutes for name in shape.calls)
    factors = {name for name, count in rows.items() if count >= 8}
    trace = capture(step_on(model, "meta"), warmup_steps=0, precision="bf16-mixed")
    record = gpu("H100-SXM-80GB")
    assert measured_share(trace, record, enough_families(nine_minutes), factors) >= share
    assert measured_share(trace, record, (), ()) == 0


def test_the_first_long_matmuls_of_each_dtype_are_measured_under_load(nine_minutes: list[ShapeToMeasure]) -> None:
    loaded = [shape for shape in nine_minutes if shape.is_loaded]
    counts = Counter((shape.operation, shape.dtype) for shape in loaded)
    assert {(name, "bfloat16") for name in ("linear", "bmm", "conv2d")} <= set(counts)
    assert set(counts.values()) == {order.LOADED_SHAPES}
    assert estimate_seconds(loaded, gpu("H100-SXM-80GB")) == pytest.approx(
        estimate_seconds([replace(shape, is_loaded=False) for shape in loaded], gpu("H100-SXM-80GB"))
        + run.LOAD_SECONDS * len(loaded)
    )


def test_a_row_has_burst_and_sustained_times_with_their_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def under_load(call: object, device: torch.device, *, load_seconds: float | None, **_: object) -> Timing:
        burst = replace(by_graph(call, device), state=GpuState(clock_hz=1.98e9, power_watts=650.0))
        return burst if load_seconds is None else replace(burst, sustained_seconds=1.1e-3, sustained_clock_hz=1.4e9)

    monkeypatch.setattr(run, "time_call", under_load)
    words = {"m": 64, "n": 64, "k": 64}
    long = ShapeToMeasure("linear", "bfloat16", words, ("linear", "linear_backward"), is_loaded=True)
    monkeypatch.setattr(run, "shapes_by_worth", lambda *args, **options: [long])
    first, second = rows_of(measure(tmp_path, operations=["linear"], device="cpu", gpu="T4").files[0])
    assert (first["warm_ms"], first["sustained_ms"], first["clock_mhz"]) == ("0.8", "1.1", "1980")
    assert (first["sustained_clock_mhz"], first["power_watts"]) == ("1400", "650")
    assert (second["sustained_ms"], second["sustained_clock_mhz"]) == ("", "")  # only the first call


class FakeReplays:
    """A captured graph, and the events that time it: a replay takes 1 ms, and 1.2 ms once the load has lasted."""

    def __init__(self) -> None:
        self.now, self.replays = 0.0, 0

    def replay(self) -> None:
        self.replays += 1
        self.now += 1.0e-3 if self.now < 0.5 else 1.2e-3


def test_the_sustained_time_is_that_at_the_end_of_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = FakeReplays()

    def timed(call: Callable[[], object], replays: int, before: object) -> float:
        start = graph.now
        for _ in range(replays):
            call()
        return (graph.now - start) / replays

    clocks = iter([GpuState(clock_hz=1.9e9), GpuState(clock_hz=1.5e9)])
    monkeypatch.setattr(clock, "_event_times", timed)
    monkeypatch.setattr(clock, "captured", lambda call, device: (graph, None))
    monkeypatch.setattr(clock, "read_state", lambda device: next(clocks))
    monkeypatch.setattr(clock, "_l2_bytes", lambda device: 8)
    monkeypatch.setattr("time.perf_counter", lambda: graph.now)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch, "empty", lambda *size, **options: torch.zeros(8, dtype=torch.uint8))
    timing = time_call(graph.replay, torch.device("cuda", 0), load_seconds=1.0)
    assert timing.warm_seconds == pytest.approx(1e-3)
    assert timing.sustained_seconds == pytest.approx(1.2e-3)
    assert (timing.state.clock_hz, timing.sustained_clock_hz) == (1.9e9, 1.5e9)
    assert graph.replays > 800


@pytest.mark.parametrize(("seconds", "longest"), [(2e-6, 512), (10e-6, 64), (0.5e-3, 1)])
def test_launch_of_a_replay_is_no_part_of_the_warm_time(
    seconds: float, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay takes the host 17 us; a queued one adds 3 us to its calls, and a flushed one lies in a queue.

    Graphs of 256 calls of 2 us, or of 32 of 10 us, last 0.3 ms and more, and those with twice as many show the call.
    """
    in_graphs: list[int] = []
    ran = [0]

    def capture(call: Callable[[], object], device: torch.device) -> tuple[SimpleNamespace, None]:
        ran[0] = 0
        call()
        in_graphs.append(ran[0])
        return SimpleNamespace(replay=in_graphs[-1]), None

    def timed(call: object, replays: int, before: object) -> float:
        if not isinstance(call, int):
            return seconds
        return call * seconds + 3e-6 + 4e-6 if before else max(17e-6, call * seconds + 3e-6)

    monkeypatch.setattr(clock, "_event_times", timed)
    monkeypatch.setattr(clock, "captured", capture)
    monkeypatch.setattr(clock, "read_state", lambda device: GpuState())
    monkeypatch.setattr(clock, "_l2_bytes", lambda device: 8)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch, "empty", lambda *size, **options: torch.zeros(8, dtype=torch.uint8))

    def count() -> None:
        ran[0] += 1

    timing = time_call(count, torch.device("cuda", 0))
    assert in_graphs[-1] == longest
    assert timing.warm_seconds == pytest.approx(seconds if longest > 1 else seconds + 3e-6)
    assert timing.flushed_seconds == pytest.approx(seconds + 7e-6)


def test_channels_last_reaches_the_calls_and_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {**TINY["conv2d"], "groups": 1, "channels_last": 1}
    calls = BENCHMARKS["conv2d"].calls(dict(words), torch.float32, CPU)
    output = calls["conv2d"]()
    assert isinstance(output, torch.Tensor)
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert not output.is_contiguous()
    to_input = calls["conv2d_backward_input"]()
    assert isinstance(to_input, tuple)
    assert to_input[0].is_contiguous(memory_format=torch.channels_last)
    monkeypatch.setattr(order, "draw_shapes", lambda operation, count, seed: [dict(words)])
    done = measure(tmp_path, operations=["conv2d"], dtypes=["float32"], shapes=1, device="cpu")
    assert {row["channels_last"] for row in rows_of(done.files[0])} == {"1"}


@pytest.mark.parametrize(("message", "tries"), [("\"sort_cuda\" not implemented for 'Half'", 1), ("CUDA error", 2)])
def test_what_cannot_be_timed_in_a_dtype_is_not_tried_again_and_again(
    message: str, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def fails(call: object, device: torch.device, **_: object) -> Timing:
        seen.append(call)
        raise RuntimeError(message)

    monkeypatch.setattr(run, "time_call", fails)
    done = measure(tmp_path, operations=["sort"], dtypes=["float32"], shapes=9, device="cpu")
    assert len(seen) == tries
    assert done.skipped[-1].endswith(f"{message} (not tried again in this dtype)")


def test_operations_that_no_graph_holds_are_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        order, "draw_shapes", lambda operation, count, seed: [{"rows": 8, "cols": n} for n in range(1, 10)]
    )
    monkeypatch.setattr(run, "time_call", eager_alone)
    done = measure(tmp_path, operations=["sort"], dtypes=["float32"], shapes=9, device="cpu")
    assert done.rows == 2
    assert done.eager[-1].endswith("it waits for the device (not tried again in this dtype)")


def test_the_rows_of_each_family_are_counted_as_train_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "time_call", by_graph)
    done = measure(
        tmp_path, operations=["relu", "sort"], dtypes=["float32"], shapes=30, device="cpu", gpu="T4", is_trial=True
    )
    (vector,) = done.families
    relu = next(group for group in read_own_tables(tmp_path) if group.batch.operation == "relu")
    assert vector.family == "vector"
    assert vector.rows == split_rows(relu.batch.columns, seed=0).fitted.sum()
    assert not vector.is_enough
    assert len(done.factors) == 3
    assert done.dropped == 0


def test_measure_prints_rows_of_needed_and_the_measured_share_of_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shares(record: object, tuned: list[str], factors: tuple[str, ...]) -> dict[str, float]:
        assert (tuned, factors) == ([], ("relu/float32", "relu_backward/float32"))
        return {"resnet50": 0.861, "gpt2": 0.744}

    monkeypatch.setattr(run, "time_call", by_graph)
    monkeypatch.setattr(typical_steps, "measured_shares", shares)
    answer = commands.measure(tmp_path, operations="relu", dtypes="float32", problems=30, device="cpu", gpu="T4")
    answer.show()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("vector: ") and line.endswith(", too few for its network")]
    assert lines[-2:] == [
        "Measured operations take 86 % of the GPU time of a ResNet-50 step.",
        "Measured operations take 74 % of the GPU time of a GPT-2 step.",
    ]
    data: Any = answer.data()
    assert data["shares"] == {"resnet50": 0.861, "gpt2": 0.744}


@pytest.mark.parametrize(
    ("operations", "error", "message"),
    [("relu", CaptureError, "No CUDA device here"), ("rellu", UnknownOperationError, "No benchmark for 'rellu'")],
)
def test_measure_records_no_step_before_it_has_checked_its_arguments(
    operations: str, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(error, match=message):
        commands.measure(tmp_path / "tables", operations=operations)
    assert not (tmp_path / "tables").exists()
