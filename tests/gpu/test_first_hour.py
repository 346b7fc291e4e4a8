"""Assumptions about GPUs that were made without access to a GPU: the first things to see when there is one."""

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import lightning_predict as lp
from lightning_predict.advice.measured_change import try_change
from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.hardware import gpu
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.own_weights.measuring.benchmarks import BENCHMARKS
from lightning_predict.own_weights.measuring.clock import captured, own_stream, read_state, time_call
from lightning_predict.own_weights.measuring.main_rates import comparison, measure_main_rates
from lightning_predict.own_weights.measuring.run import measure
from lightning_predict.own_weights.training.tuning import tune_weights
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.recording import capture
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.calibration import RecordedSimulation, recorded_gap
from lightning_predict.timeline.host import HostModel
from tests.callbacks.small import Small
from tests.gpu.test_peak_memory import step_on
from tests.known import known
from tests.own_weights.measuring.test_measuring import MATRIX, TINY

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
Note = Callable[[str, object], None]

WAITS_FOR_THE_DEVICE = frozenset({"svd", "eig", "eigh", "lu", "qr", "cholesky", "matrix_exponential", "fft"})
"""Benchmarks that a library may only run with waits for the device, which no graph holds."""


@cache
def resnet() -> tuple[Trace, Callable[[], object]]:
    """A captured step of ResNet-50 whose loop was timed, and the step."""
    step = step_on("resnet50", "cuda")
    return capture(step, warmup_steps=12), step


def test_this_gpu_is_in_the_catalogue(record_property: Note) -> None:
    trace, _ = resnet()
    record_property("gpu", trace.gpu_reported_name)
    assert gpu_in_use(trace) is not None


def test_the_loop_and_the_host_without_a_profiler_were_timed(record_property: Note) -> None:
    trace, _ = resnet()
    assert trace.running_step_seconds is not None
    assert len(trace.host_seconds_unprofiled) == len(trace.step_seconds)
    standing = statistics.median(trace.step_seconds)
    record_property("ms", f"loop {1e3 * trace.running_step_seconds:.2f}, alone {1e3 * standing:.2f}")
    assert trace.running_step_seconds <= 1.03 * standing


def test_a_block_of_steps_takes_as_long_a_step_as_fifty_in_a_row(record_property: Note) -> None:
    trace, step = resnet()
    assert trace.running_step_seconds is not None
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(50):
        step()
    torch.cuda.synchronize()
    each = (time.perf_counter() - began) / 50
    record_property("error", f"{trace.running_step_seconds / each - 1:+.1%}")
    assert trace.running_step_seconds == pytest.approx(each, rel=0.05)


def test_a_step_is_predicted_on_its_own_gpu_from_its_kernels_within_5_percent(record_property: Note) -> None:
    trace, _ = resnet()
    origin = known(gpu_in_use(trace))
    assert trace.running_step_seconds is not None
    alone = replace(trace.untimed(), profiled_seconds=trace.profiled_seconds)
    predicted = lp.predict(alone, [origin.name], history=False)[origin.name].iteration_seconds
    record_property("error", f"{predicted / trace.running_step_seconds - 1:+.1%}")
    assert predicted == pytest.approx(trace.running_step_seconds, rel=0.05)


def test_the_host_of_the_recording_is_slower_than_the_one_that_was_read_and_by_how_much(record_property: Note) -> None:
    trace, _ = resnet()
    origin = known(gpu_in_use(trace))
    timed = predict_work_times(trace, [origin], origin=origin, models=None)
    replayed = RecordedSimulation(trace, timed, HostModel(), recorded_gap(trace)).host_seconds(1.0)
    read = statistics.median(trace.host_seconds_unprofiled)
    record_property("replayed over read", f"{replayed / read:.2f}")
    assert replayed > 0.85 * read


def test_hosts_of_two_recordings_agree_within_15_percent(record_property: Note) -> None:
    trace, step = resnet()
    again = capture(step, warmup_steps=8)
    one, two = (statistics.median(each.host_seconds_unprofiled) for each in (trace, again))
    record_property("ratio", f"{two / one:.2f}")
    assert two == pytest.approx(one, rel=0.15)


@pytest.mark.parametrize(
    ("operation", "dtype", "words"),
    [
        ("linear", "float32", {"m": 4096, "n": 4096, "k": 1024}),
        ("linear", "float16", {"m": 4096, "n": 4096, "k": 1024}),
        ("softmax", "float32", {"rows": 8192, "cols": 1024}),
        ("gelu", "float16", {"rows": 8192, "cols": 4096}),
        ("layer_norm", "float16", {"rows": 8192, "cols": 1024}),
    ],
)
def test_an_operation_takes_as_long_as_the_weights_say(
    operation: str, dtype: str, words: dict[str, int], record_property: Note
) -> None:
    trace, _ = resnet()
    origin = gpu_in_use(trace)
    with own_stream(CUDA):
        calls = BENCHMARKS[operation].calls(words, getattr(torch, dtype), CUDA)
        timing = time_call(calls[operation], CUDA)
    assert timing.flushed_seconds is not None, timing.reason
    predicted = float(lp.operator_seconds(operation, known(origin).name, dtype=dtype, weights=None, **words))
    record_property("error", f"{predicted / timing.flushed_seconds - 1:+.1%}")
    assert predicted == pytest.approx(timing.flushed_seconds, rel=0.25)


def test_every_benchmark_is_captured_without_the_host(record_property: Note) -> None:
    waiting: dict[str, str] = {}
    for operation, benchmark in BENCHMARKS.items():
        may_wait = operation in WAITS_FOR_THE_DEVICE
        dtype = torch.float32 if may_wait else torch.float16
        with own_stream(CUDA):
            calls = benchmark.calls(dict(TINY.get(operation, MATRIX)), dtype, CUDA)
            timings = {name: time_call(call, CUDA, replays=3) for name, call in calls.items()}
        waiting |= {name: str(timing.reason) for name, timing in timings.items() if timing.reason is not None}
    record_property("eager", ", ".join(waiting) or "none")
    assert {name: reason for name, reason in waiting.items() if name not in WAITS_FOR_THE_DEVICE} == {}


def test_a_backward_pass_by_a_graph_takes_no_longer_than_by_ordinary_calls(record_property: Note) -> None:
    with own_stream(CUDA):
        calls = BENCHMARKS["linear"].calls({"m": 256, "n": 256, "k": 256}, torch.float32, CUDA)
        timing = time_call(calls["linear_backward"], CUDA)
    assert timing.warm_seconds is not None, timing.reason
    record_property("eager over graph", f"{timing.eager_seconds / timing.warm_seconds:.1f}")
    assert timing.warm_seconds <= timing.eager_seconds


def test_after_a_failed_capture_random_numbers_and_captures_go_on() -> None:
    values = torch.ones(8, device=CUDA)
    with own_stream(CUDA):
        values.sum().item()
        graph, reason = captured(lambda: values.sum().item(), CUDA)
        assert graph is None
        assert reason is not None
        torch.nn.functional.dropout(values)
        graph, reason = captured(lambda: torch.nn.functional.dropout(values), CUDA)
        assert reason is None
        known(graph).replay()
    torch.cuda.synchronize()


def test_minutes_of_measuring_train_weights_that_a_prediction_uses(tmp_path: Path, record_property: Note) -> None:
    done = measure(tmp_path / "tables", operations=["linear"], dtypes=["float16"], shapes=700, minutes=5)
    assert done.rows > 600
    scores = tune_weights(tmp_path / "tables", tmp_path / "weights")
    record_property("error", f"{scores[0].before:.1%} before, {scores[0].after:.1%} after")
    trace, _ = resnet()
    origin = gpu_in_use(trace)
    seconds = lp.operator_seconds(
        "linear", known(origin).name, dtype="float16", weights=str(tmp_path / "weights"), m=2048, n=2048, k=2048
    )
    record_property("rows", done.rows)
    assert float(seconds) > 0


def test_the_rates_of_large_products_are_as_assumed(record_property: Note) -> None:
    rates = measure_main_rates(seconds=2.0)
    for rate in comparison(rates):
        record_property(rate.name, f"{rate.measured:.4g} {rate.unit}, {rate.assumed:.4g} assumed")
        assert rate.measured == pytest.approx(rate.assumed, rel=0.35)
    assert rates.flops_per_second["float16"] > rates.flops_per_second["float32"]


def test_the_driver_tells_clock_and_power(record_property: Note) -> None:
    state = read_state(CUDA)
    record_property("state", state)
    assert state.clock_hz is not None
    assert state.power_limit_watts is not None


def test_a_callback_predicts_in_a_fit_on_this_gpu(tmp_path: Path, record_property: Note) -> None:
    small = Small("lightning.pytorch")
    predictor = RuntimePredictor(gpus=["T4", "H100-SXM-80GB"], learn_from_history=False, print_table=False)
    trainer = small.trainer(tmp_path, accelerator="gpu", max_epochs=1, callbacks=[predictor])
    trainer.fit(small.model(), small.loader(80))
    assert predictor.trace is not None
    assert predictor.trace.has_measured_kernels
    share = known(predictor.trace.running_step_seconds) / statistics.median(predictor.trace.step_seconds)
    record_property("running over standing", f"{share:.2f}")
    assert predictor.predictions is not None


def test_a_captured_step_is_followed_so_that_every_change_can_be_advised(record_property: Note) -> None:
    trace, _ = resnet()
    assert not [note for note in trace.notes if note.startswith("Tensors could not be followed")]
    advice = lp.advise(trace, [known(gpu_in_use(trace)).name])
    for name in ("compile", "channels_last", "bf16-mixed"):
        assert advice[name].simulated_gain is not None, advice[name].why_not
    record_property("compile simulated", f"{advice['compile'].simulated_gain:.2f}")


def test_a_fit_that_asks_for_advice_follows_one_step_more(tmp_path: Path) -> None:
    small = Small("lightning.pytorch")
    predictor = RuntimePredictor(gpus=["T4"], advice=True, learn_from_history=False, print_table=False)
    small.trainer(tmp_path, accelerator="gpu", max_epochs=1, callbacks=[predictor]).fit(small.model(), small.loader(80))
    assert predictor.advice is not None
    assert predictor.advice["compile"].simulated_gain is not None, predictor.advice["compile"].why_not


@pytest.mark.parametrize("change", ["bf16-mixed", "channels_last", "compile"])
def test_the_gain_of_a_change_lies_in_the_interval_of_the_advice(change: str, record_property: Note) -> None:
    trace, _ = resnet()
    told = lp.advise(trace, [known(gpu_in_use(trace)).name])[change]
    tried = try_change(change, lambda batch_size: step_on("resnet50", "cuda"), batch_size=trace.samples or 1)
    simulated = told.simulated_gain
    assert simulated is not None, told.why_not
    record_property("simulated / measured", f"{simulated:.2f} / {tried.gain.middle:.2f}")
    if told.gain is None:  # no pair of measured steps proves such gains: the test promises half to twice
        assert 0.5 < simulated / tried.gain.middle < 2
    else:
        assert told.gain.low <= tried.gain.high
        assert tried.gain.low <= told.gain.high


def test_a_profiler_of_the_trainer_does_not_end_the_fit_or_the_process(tmp_path: Path) -> None:
    small = Small("lightning.pytorch")
    predictor = RuntimePredictor(gpus=["T4"], learn_from_history=False, print_table=False)
    trainer = small.trainer(tmp_path, accelerator="gpu", max_epochs=1, callbacks=[predictor], profiler="pytorch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it records nothing during another profiler
        trainer.fit(small.model(), small.loader(40))
    assert trainer.state.finished


def test_two_gpus_reduce_as_fast_as_the_curves_say(record_property: Note) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    sizes = [2**22, 2**26]
    parts = [torch.ones(size, device=f"cuda:{index}", dtype=torch.float16) for size in sizes for index in (0, 1)]
    from torch.cuda import nccl

    origin = gpu(torch.cuda.get_device_name(0))
    for place, size in enumerate(sizes):
        pair = parts[2 * place : 2 * place + 2]
        nccl.all_reduce(pair)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(10):
            nccl.all_reduce(pair)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        measured = (time.perf_counter() - began) / 10
        predicted = float(lp.operator_seconds("all_reduce", origin.name, num_gpus=2, message_bytes=2 * size))
        record_property(f"{2 * size} bytes", f"{predicted / measured - 1:+.0%}")
        assert 0.4 < predicted / measured < 2.5
