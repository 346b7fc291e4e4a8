"""Command `regress`: predicts the time of a run with other settings, from the times of your own past runs.

Example::

    lightning-predict regress runs.csv --batch-sizes 256,512 --num-gpus 4,8 --iterations 10000
    lightning-predict regress alexnet.json.gz --layers googlenet.json.gz,vgg.json.gz
    lightning-predict regress mlflow.csv --columns batch_size=bs --values gpu=A10G --gpus A10G,L4 --iterations 5000
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

from lightning_predict.base.answers import CommandAnswer, aligned, json_value
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.files import history_path, named_file
from lightning_predict.base.units import gigaflops_to_flops
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Trace
from lightning_predict.regression.end_to_end import (
    EndToEndRegression,
    RegressionOptions,
    RunEstimate,
    fit_regression,
    of_one_model,
)
from lightning_predict.regression.layers import fit_layers, layers_of, recorded_times
from lightning_predict.regression.runs import PastRun, RunSetting, RunTable, read_runs
from lightning_predict.reports.format import duration

HISTORY: Final = "history"  # Argument that selects the runs in the user's history

Number = int | float


def regress(
    runs: Path,
    /,
    *,
    model: str | None = None,
    columns: str | None = None,
    values: str | None = None,
    iterations: str | None = None,
    batch_sizes: str | None = None,
    gpus: str | None = None,
    gflops: str | None = None,
    num_gpus: str | None = None,
    threads: str | None = None,
    disk_delay_seconds: str | None = None,
    inner_modules: str | None = None,
    sequence_lengths: str | None = None,
    degree: int = 2,
    max_terms: int | None = None,
    absolute: bool = False,
    layers: str | None = None,
) -> CommandAnswer:
    """Predict runs with other settings from the times of your own past runs, by a regression.

    With --layers, predict a recorded step of one neural network from the measured layers of others on the same GPU.

    Past runs are rows of a table with seconds, iterations, batch_size and gpu (or gflops). If they vary, num_gpus,
    threads, disk_delay_seconds, inner_modules and sequence_length are needed, too. Other sources are
    exports of MLflow or W&B, and `history`, the runs stored by RuntimePredictor. Each setting to predict
    may have several values, separated by commas. All combinations are predicted. Needs the extra `fitting`.

    Args:
        runs: A CSV file, `history`, or a folder of runs with trainer_state.json or wandb-summary.json; with --layers, a
            recorded step.
        model: Use only the runs of this model.
        columns: Your table's names for columns, for example batch_size=params.bs,seconds=Runtime.
        values: Values that the table lacks, the same for all runs, for example gpu=T4,num_gpus=1.
        iterations: Training iterations of each run to predict.
        batch_sizes: Samples of one iteration on one GPU.
        gpus: GPUs of the runs to predict, by name, or with a number (8xL4).
        gflops: Computing power of one GPU in GFLOP/s, for GPUs missing in the catalogue.
        num_gpus: Numbers of GPUs of the runs to predict.
        threads: CPU threads of the data loaders.
        disk_delay_seconds: Delays of the disk in seconds.
        inner_modules: Number of repeated modules, for a family of neural networks that differ in depth.
        sequence_lengths: Tokens of a sample.
        degree: Maximum degree of products of variables.
        max_terms: Maximum number of terms of the regression (default: all significant ones).
        absolute: Minimise absolute errors instead of relative ones.
        layers: Steps recorded on one GPU, or profiles of one CPU, separated by commas. For each kind of layer, a line
            is fitted through its times.
    """
    if layers is not None:
        return _of_layers(runs, [Path(name) for name in _words(layers)])
    source = history_path() if str(runs) == HISTORY and not runs.exists() else named_file(runs)
    table = read_runs(source, columns=_pairs("columns", columns), values=_pairs("values", values))
    chosen = of_one_model(table.runs, model)
    regression = fit_regression(
        chosen, options=RegressionOptions(degree=degree, max_terms=max_terms, relative=not absolute)
    )
    requested: dict[str, Sequence[Any]] = {
        "iterations": _numbers("iterations", iterations),
        "batch_size": _numbers("batch-sizes", batch_sizes),
        "num_gpus": _numbers("num-gpus", num_gpus),
        "threads": _numbers("threads", threads),
        "disk_seconds": _numbers("disk-delay-seconds", disk_delay_seconds),
        "inner_modules": _numbers("inner-modules", inner_modules),
        "sequence_length": _numbers("sequence-lengths", sequence_lengths),
    }
    rates = [gigaflops_to_flops(value) for value in _numbers("gflops", gflops)]
    names = _words(gpus)
    settings = _settings(chosen, requested, names, rates) if names or rates or any(requested.values()) else ()
    estimates = [regression.predict(setting) for setting in settings]
    return CommandAnswer(
        data=lambda: _data(regression, table, estimates), show=lambda: print(_text(regression, table, estimates))
    )


def _of_layers(network: Path, recordings: Sequence[Path]) -> CommandAnswer:
    """Predict a step from the measured layers of recorded steps."""
    traces = [Trace.load(str(path)) for path in recordings]
    gpus = set()
    for recorded in traces:
        gpu, name = gpu_in_use(recorded), "the CPU" if recorded.device == "cpu" else recorded.gpu_reported_name
        gpus.add((name or "an unknown GPU") if gpu is None else gpu.name)
    if len(gpus) > 1:
        raise InvalidArgumentError(
            f"--layers has recordings of several GPUs ({', '.join(sorted(gpus))}); a fit needs a single GPU. Give "
            "recordings of one."
        )
    regression = fit_layers(layer for recorded in traces for layer in layers_of(recorded))
    trace = Trace.load(str(network))
    estimate = regression.predict(trace)
    if not estimate.layers:
        reason = f"it has {', '.join(estimate.unknown)}" if estimate.unknown else "its operations have no shapes"
        raise InvalidArgumentError(
            f"{network} has no layer whose kind the recordings of --layers hold: {reason}. Record it with lp.capture, "
            "or give recordings with such layers."
        )
    measured = sum(time for operation in trace.operations for time in recorded_times(trace, operation))
    rows = [
        [kind, str(line.layers), f"{line.intercept:.3g} + {line.per_byte:.3g} b + {line.per_flop:.3g} f"]
        for kind, line in regression.lines.items()
    ]
    lines = [
        aligned(["layers with b bytes and f FLOPs", "fitted", "seconds"], rows, right={1}),
        "",
        f"{network}: {duration(estimate.seconds)} of device time in {estimate.layers} layers on {gpus.pop()}"
        + (f"; {duration(measured)} were recorded." if measured else "."),
        *(f"Left out, as no recording has it: {kind}, {count} calls." for kind, count in estimate.unknown.items()),
        *(f"{kind}: {factor:.2g} times the work of the largest fitted." for kind, factor in estimate.beyond.items()),
    ]
    return CommandAnswer(
        data=lambda: {
            "lines": json_value(regression.lines),
            "prediction": json_value(estimate),
            "recorded_seconds": measured or None,
        },
        show=lambda: print("\n".join(lines)),
    )


def _pairs(option: str, text: str | None) -> dict[str, str]:
    """Parse `a=b,c=d` into a dictionary."""
    pairs = [word.partition("=") for word in _words(text)]
    wrong = ["".join(pair) for pair in pairs if not (pair[0] and pair[2])]
    if wrong:
        raise InvalidArgumentError(f"--{option} has {wrong[0]!r}; expected pairs like batch_size=params.bs.")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _numbers(option: str, text: str | None) -> list[Number]:
    """Parse comma-separated numbers. Whole numbers become int."""
    try:
        values = [float(word) for word in _words(text)]
    except ValueError:
        raise InvalidArgumentError(f"--{option} has {text!r}; expected numbers, separated by commas.") from None
    return [int(value) if value.is_integer() else value for value in values]


def _settings(
    runs: Sequence[PastRun], requested: Mapping[str, Sequence[Any]], gpus: Sequence[str], rates: Sequence[float]
) -> tuple[RunSetting, ...]:
    """Return all combinations of the given settings. A setting that is not given must be equal in all past runs."""
    if gpus and rates:
        raise InvalidArgumentError("Give one of --gpus and --gflops.")
    layouts = [layout_of(name) for name in gpus]
    if requested["num_gpus"] and any(layout.count > 1 for layout in layouts):
        raise InvalidArgumentError("--gpus says how many GPUs already; leave --num-gpus out, or the numbers of --gpus.")
    cards: list[tuple[str | None, float | None, int]] = [(layout.gpu.name, None, layout.count) for layout in layouts]
    cards += [(None, rate, 1) for rate in rates]
    if not cards:
        _same(runs, "flops_per_second")
        cards = [(runs[0].setting.gpu, runs[0].setting.flops_per_second, 1)]
    settings = []
    for gpu, rate, count in cards:
        lists = [
            [count] if name == "num_gpus" and count > 1 else values or [_same(runs, name)]
            for name, values in requested.items()
        ]
        settings += [
            RunSetting(gpu=gpu, flops_per_second=rate, **dict(zip(requested, values, strict=True)))
            for values in product(*lists)
        ]
    return tuple(settings)


_OPTIONS: Final = {"batch_size": "batch-sizes", "flops_per_second": "gpus", "disk_seconds": "disk-delay-seconds"} | {
    "sequence_length": "sequence-lengths"
}


def _same(runs: Sequence[PastRun], name: str) -> Any:
    """Return the value of a setting that is equal in all runs."""
    values = {getattr(run.setting, name) for run in runs}
    if len(values) > 1:
        option = _OPTIONS.get(name, name.replace("_", "-"))
        raise InvalidArgumentError(
            f"The past runs have {len(values)} values of {name}; say with --{option} which to predict for."
        )
    return values.pop()


def _data(regression: EndToEndRegression, table: RunTable, estimates: Sequence[RunEstimate]) -> dict[str, object]:
    terms = zip(regression.terms, regression.coefficients.tolist(), strict=True)
    return {
        "model": regression.model,
        "runs": regression.runs,
        "formula": regression.formula,
        "intercept": regression.intercept,
        "coefficients": {term.name: value for term, value in terms},
        "ranges": json_value(regression.ranges),
        "mean_error": regression.mean_error,
        "left_out_error": regression.cross_validation_error,
        "predictions": [
            json_value(estimate) | {"notes": [outside.note for outside in estimate.extrapolations]}
            for estimate in estimates
        ],
        "notes": [*table.notes, *regression.notes],
    }


def _text(regression: EndToEndRegression, table: RunTable, estimates: Sequence[RunEstimate]) -> str:
    left_out = regression.cross_validation_error
    errors = f"Mean error: {100 * regression.mean_error:.1f} % on these runs"
    if left_out is not None:
        errors += f", {100 * left_out:.1f} % on runs left out of the fit (a tenth at a time)"
    lines = [f"{regression.runs} past runs of {regression.model}: {regression.formula}", f"{errors}."]
    lines += [*table.notes, *regression.notes]
    if estimates:
        lines += ["", _table(estimates)]
        outside = [(number, estimate) for number, estimate in enumerate(estimates, start=1) if estimate.extrapolations]
        lines += ["", "Outside the past runs, where the regression may be wrong:"] if outside else []
        lines += [
            f"  {number}: {'; '.join(one.note for one in estimate.extrapolations)}" for number, estimate in outside
        ]
        if any(estimate.time is None for estimate in estimates):
            lines.append("A dash: the regression falls to 0 or below, so far from the past runs.")
    return "\n".join(lines)


_COLUMNS: Final[Mapping[str, Callable[[RunSetting], object]]] = {
    "GPU": lambda setting: setting.gpu or f"{setting.flops_per_second:.3g} FLOP/s",
    "GPUs": lambda setting: setting.num_gpus,
    "batch size": lambda setting: setting.batch_size,
    "iterations": lambda setting: setting.iterations,
    "threads": lambda setting: setting.threads,
    "disk delay (s)": lambda setting: setting.disk_seconds,
    "inner modules": lambda setting: setting.inner_modules,
    "sequence length": lambda setting: setting.sequence_length,
}


def _table(estimates: Sequence[RunEstimate]) -> str:
    shown = {
        name: value for name, value in _COLUMNS.items() if any(value(one.setting) is not None for one in estimates)
    }
    rows = []
    for number, estimate in enumerate(estimates, start=1):
        time = estimate.time
        times = ["-", "-"]
        if time is not None:
            times = [duration(time.middle), f"{duration(time.low)} - {duration(time.high)}"]
        rows.append([str(number), *(str(value(estimate.setting)) for value in shown.values()), *times])
    headers = ["", *shown, "time", "interval (90 %)"]
    return aligned(headers, rows, right=set(range(len(headers))) - {1})
