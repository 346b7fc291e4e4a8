"""Tunes (fine-tunes) the shipped networks to your own GPUs: from tables of `measure` to weights files and scores.

Each family of operations with enough measurements on a GPU starts from its current network: the GPU's own network, or
the network for unmeasured GPUs. No network ships for convolutions on tensor cores, so their training starts from
scratch. Families without measurements keep the shipped networks. For operations without a tuned network, a dozen
measurements give a correction factor (`factors.py`). Networks and factors are scored on held-out shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from joblib import Parallel, delayed

from lightning_predict.base.errors import MeasurementTableError, UnknownGpuError
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import BundledModels, UtilisationModels, log_utilisation_of
from lightning_predict.kernels.operations import Array, NetworkSpec, network_specs
from lightning_predict.own_weights.training.factors import (
    conformal_quantile,
    log_residuals,
    measured_factors,
    row_weights,
)
from lightning_predict.own_weights.training.networks import (
    TrainingPlan,
    collect_rows,
    train_network,
    with_constants_in_bias,
)
from lightning_predict.own_weights.training.tables import STEPS_FOLDER, Group, read_own_tables, split_rows
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Trace
from lightning_predict.weights.files import (
    MANIFEST_NAME,
    HeldOutError,
    Manifest,
    ManifestEntry,
    file_name,
    sha256,
    write_weights,
)
from lightning_predict.weights.records import GpuWeights, LoadedWeights, MeasuredFactor, NetworkWeights
from lightning_predict.weights.store import load_weights

RECIPE_NAME: Final = "own-1"
SOURCE: Final = "one's own measurements"

MIN_OWN_ROWS: Final = 500  # Minimum number of fitted rows for tuning a network
TUNING: Final = TrainingPlan(steps=2500, learning_rate=1e-3)  # Training plan of networks that start from shipped ones

FRESH: Final = TrainingPlan(steps=4000, batch_rows=512, hidden=(64, 64, 64), members=4, weight_decay=0.03)
"""Training plan of networks that start from scratch."""

MIN_CALIBRATION_ROWS: Final = 5  # Minimum number of calibration rows for an operation's own interval


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnScore:
    """Errors on held-out measurements, |predicted / measured - 1|, before and after tuning."""

    gpu: str
    operation: str
    dtype: str
    rows: int
    before: float | None  # Mean error of the previous network; None without a previous network
    after: float  # Mean error of the tuned network
    median: float  # Median error of the tuned network
    coverage: float  # Share of the measurements inside the tuned network's 90 % interval
    refused: str | None = None  # Why the network or factor was not stored; None if it was


@dataclass(frozen=True)
class _Task:
    """One network to tune: a family on a GPU, with its measurements and its previous network."""

    family: NetworkSpec
    gpu: Gpu
    groups: tuple[Group, ...]
    start: NetworkWeights | None
    seen: Gpu  # the GPU as the previous network sees it: only data sheet values, if the network is for unmeasured GPUs


def tune_weights(
    tables: Path,
    output: Path,
    *,
    seed: int = 0,
    jobs: int = 2,
    plan: TrainingPlan | None = None,
    done: Callable[[str], None] = lambda _: None,
) -> tuple[OwnScore, ...]:
    """Tune networks to the GPUs of your tables, and write a weights file for each GPU, and a manifest.

    A network or factor is stored only if it lowers the errors on held-out rows, weighted by their time, and does not
    raise the errors on the recorded steps of the tables (`STEPS_FOLDER`), of which each GPU needs one.

    Existing weights files in the output folder are deleted. The number of parallel `jobs` does not change the results.
    Without a `plan`, it is `TUNING`, or `FRESH` if no network ships. `done` gets a sentence after each network.
    """
    groups = read_own_tables(tables)
    gpus = gpus_of(groups)
    if not gpus:
        raise MeasurementTableError(
            f"No GPU of {str(tables)!r} is in the catalogue by its name: {', '.join(sorted({g.gpu for g in groups}))}. "
            "Give `measure --gpu` the name that `lightning-predict gpus` lists."
        )
    steps = {name: _steps_on(tables, card) for name, card in gpus.items()}
    if unchecked := [name for name, own in steps.items() if not own]:
        raise MeasurementTableError(
            f"{str(tables / STEPS_FOLDER)!r} has no step recorded on {', '.join(unchecked)}. Weights that no step "
            "checks can make steps worse; run `lightning-predict measure` into this folder again to record three."
        )
    shipped = load_weights(sorted(gpus))
    tasks = [task for card in gpus.values() for task in _tasks(card, groups, shipped, seed)]
    calls = [delayed(_tuned)(task, plan, seed) for task in tasks]
    tuned: dict[str, dict[str, NetworkWeights]] = {name: {} for name in gpus}
    scores: list[OwnScore] = []
    for task, network in zip(tasks, Parallel(n_jobs=jobs, return_as="generator")(calls), strict=True):
        name, own = task.gpu.name, tuned[task.gpu.name]
        models, changed = (
            _models_with(name, kept, shipped, seed) for kept in (own, {**own, task.family.name: network})
        )
        refused = _why_worse(task.groups, task.gpu, models, changed, steps[name], seed)
        if refused is None:
            own[task.family.name] = network
        scores += [replace(score, refused=refused) for score in _scores(task, network, seed)]
        done(f"{name}: {task.family.name}" + ("" if refused is None else f" refused, {refused}"))
    factors: dict[str, dict[str, MeasuredFactor]] = {name: {} for name in gpus}
    for name, card in gpus.items():
        others = _without_network(card, groups, tasks)
        models = _models_with(name, tuned[name], shipped, seed)
        measured = measured_factors(others, card, models, seed=seed)
        for score, group in _factor_scores(others, card, measured, models, seed):
            key = f"{score.operation}/{score.dtype}"
            own_models, changed = (
                _models_with(name, tuned[name], shipped, seed, kept)
                for kept in (factors[name], {**factors[name], key: measured[key]})
            )
            refused = _why_worse([group], card, own_models, changed, steps[name], seed)
            if refused is None:
                factors[name][key] = measured[key]
            scores.append(replace(score, refused=refused))
        done(f"{name}: {len(factors[name])} of {len(measured)} factors")
    if not tasks and not any(factors.values()):
        raise MeasurementTableError(_too_few(groups, seed))
    _write(tuned, factors, tasks, scores, shipped, output, seed)
    return tuple(scores)


NO_WORSE: Final = 1e-3  # Change of an error on recorded steps that counts as none


def _steps_on(tables: Path, card: Gpu) -> tuple[Trace, ...]:
    """Return the steps of a folder of tables that were recorded with kernels on a GPU."""
    steps = [Trace.load(path) for path in sorted((tables / STEPS_FOLDER).glob("*.json.gz"))]
    return tuple(step for step in steps if step.has_measured_kernels and gpu_in_use(step) == card)


def _why_worse(
    groups: Iterable[Group], card: Gpu, before: BundledModels, after: BundledModels, steps: Sequence[Trace], seed: int
) -> str | None:
    """Return why changed models are no improvement; None if they are one."""
    held_out = [group.take(split_rows(group.batch.columns, seed=seed).held_out) for group in groups]
    held_out = [group for group in held_out if len(group.seconds)]
    if held_out:
        weights = np.concatenate([row_weights(group) for group in held_out])
        own, new = (
            float(weights @ np.abs(np.concatenate([log_residuals(group, card, models) for group in held_out])))
            for models in (before, after)
        )
        if new >= own:
            return "its held-out rows get worse"
    for step in steps:
        own_errors, new_errors = (_step_errors(step, card, model) for model in (before, after))
        if any(new > own + NO_WORSE for own, new in zip(own_errors, new_errors, strict=True)):
            return "a recorded step gets worse"
    return None


def _step_errors(step: Trace, card: Gpu, models: BundledModels) -> tuple[float, float]:
    """Return the net and the item-by-item error of a recorded step's GPU time, predicted from its shapes."""
    shapes = replace(step.untimed(), operations=tuple(replace(operation, kernels=()) for operation in step.operations))
    timed = predict_work_times(shapes, [card], origin=None, models=models)
    measured = [sum(k.seconds for own in item.operations for k in step.operations[own].kernels) for item in timed.items]
    errors = timed.seconds[0] - np.array(measured)
    return abs(float(errors.sum())) / sum(measured), float(np.abs(errors).sum()) / sum(measured)


def _without_network(card: Gpu, groups: Sequence[Group], tasks: Sequence[_Task]) -> list[Group]:
    """Return the measurements of a GPU for which no network is tuned."""
    return [
        group
        for group in groups
        if group.gpu == card.name and not any(task.gpu == card and _serves(task.family, group) for task in tasks)
    ]


def _models_with(
    name: str,
    networks: Mapping[str, NetworkWeights],
    shipped: LoadedWeights,
    seed: int,
    factors: Mapping[str, MeasuredFactor] = MappingProxyType({}),
) -> BundledModels:
    """Return the shipped models with the tuned networks and the correction factors of one GPU."""
    known = shipped.gpus.get(name)
    own = GpuWeights(name, {**(known.families if known else {}), **networks}, RECIPE_NAME, seed, (), factors)
    gpus = {**shipped.gpus, name: own} if own.families or factors else shipped.gpus
    return BundledModels(networks=UtilisationModels(replace(shipped, gpus=gpus)))


def _factor_scores(
    groups: Sequence[Group], card: Gpu, factors: Mapping[str, MeasuredFactor], models: BundledModels, seed: int
) -> Iterable[tuple[OwnScore, Group]]:
    """Yield the scores of factors on held-out rows, or on all rows if none is held out."""
    for group in groups:
        factor = factors.get(f"{group.batch.operation}/{group.batch.dtype}")
        if factor is None:
            continue
        held_out = group.take(split_rows(group.batch.columns, seed=seed).held_out)
        checked = held_out if len(held_out.seconds) else group
        before = -log_residuals(checked, card, models)  # log(predicted / measured)
        error = before + math.log(factor.factor)
        yield _score(card, checked, before, error, factor.half_width), group


def gpus_of(groups: Iterable[Group]) -> dict[str, Gpu]:
    """Return the GPUs of the tables whose exact names are in the catalogue.

    The name `V100` is excluded: it is an alias of one form factor, but the measured form factor is unknown.
    """
    cards: dict[str, Gpu] = {}
    for name in sorted({group.gpu for group in groups}):
        try:
            card = find_gpu(name)
        except UnknownGpuError:
            continue
        if card.name == name:
            cards[name] = card
    return cards


def log_errors(family: NetworkSpec, network: NetworkWeights, group: Group, gpu: Gpu) -> Array:
    """Return log(predicted / measured) of every row of a group."""
    log_utilisation = log_utilisation_of(network, family.feature_matrix(group.batch, [gpu]))[0]
    error: Array = np.log(reference_seconds(group.batch, [gpu])[0]) - log_utilisation - np.log(group.seconds)
    return error


def weighted_quantile(errors: Array, weights: Array) -> float:
    """Return the conformal quantile of weighted errors, at least 0.001."""
    return max(conformal_quantile(errors, weights), 1e-3)


def _tasks(card: Gpu, groups: Sequence[Group], shipped: LoadedWeights, seed: int) -> list[_Task]:
    tasks = []
    for family in network_specs().values():
        mine = tuple(group for group in groups if group.gpu == card.name and _serves(family, group))
        if fitted_rows(mine, seed) < MIN_OWN_ROWS:
            continue
        own = shipped.gpus[card.name].families.get(family.name) if card.name in shipped.gpus else None
        start = own or shipped.cross_gpu_model.families.get(family.name)
        tasks.append(_Task(family, card, mine, start, card if own is not None else family.unmeasured(card)))
    return tasks


def _serves(family: NetworkSpec, group: Group) -> bool:
    return group.batch.operation in family.operations and group.batch.dtype in family.dtypes


def fitted_rows(groups: Sequence[Group], seed: int) -> int:
    """Return the number of rows that a network is fitted to, without calibration and held-out rows."""
    return sum(int(split_rows(group.batch.columns, seed=seed).fitted.sum()) for group in groups)


def _too_few(groups: Sequence[Group], seed: int) -> str:
    counts = {
        name: fitted_rows([g for g in groups if _serves(family, g)], seed) for name, family in network_specs().items()
    }
    most = max(counts, key=lambda name: counts[name])
    return (
        f"No family of operations has {MIN_OWN_ROWS} rows to fit on one GPU, and no operation enough for a factor. "
        f"Most rows are of {most}: {counts[most]}. Measure more shapes of "
        f"{', '.join(network_specs()[most].operations)} "
        "(`measure --problems`)."
    )


def _tuned(task: _Task, plan: TrainingPlan | None, seed: int) -> NetworkWeights:
    """Train one network and set its interval."""
    splits = [split_rows(group.batch.columns, seed=seed) for group in task.groups]
    fitted = [group.take(split.fitted) for group, split in zip(task.groups, splits, strict=True)]
    calibration = [group.take(split.calibration) for group, split in zip(task.groups, splits, strict=True)]
    cards = [task.gpu] * len(task.groups)
    rows, checked = collect_rows(task.family, fitted, cards), collect_rows(task.family, calibration, cards)
    wanted = plan or (FRESH if task.start is None else TUNING)
    network = train_network(rows, checked, wanted, seed=seed, start=task.start)
    widths: dict[str, float] = {}
    for calibrating, fitting in zip(calibration, fitted, strict=True):
        if len(calibrating.seconds) >= MIN_CALIBRATION_ROWS:
            # Errors on new shapes are at least as large as errors on fitted shapes, so both sets are considered.
            parts = [np.abs(log_errors(task.family, network, part, task.gpu)) for part in (calibrating, fitting)]
            key = f"{calibrating.batch.operation}/{calibrating.batch.dtype}"
            widths[key] = max(weighted_quantile(part, np.ones(len(part))) for part in parts)
    return replace(network, interval={**widths, "*": max(widths.values(), default=math.log(3))})


def _scores(task: _Task, network: NetworkWeights, seed: int) -> Iterable[OwnScore]:
    for group in task.groups:
        held_out = group.take(split_rows(group.batch.columns, seed=seed).held_out)
        if not len(held_out.seconds):
            continue
        error = log_errors(task.family, network, held_out, task.gpu)
        before = None if task.start is None else log_errors(task.family, task.start, held_out, task.seen)
        half_width = network.half_width(group.batch.operation, group.batch.dtype)
        yield _score(task.gpu, held_out, before, error, half_width)


def _score(card: Gpu, held_out: Group, before: Array | None, error: Array, half_width: float) -> OwnScore:
    return OwnScore(
        gpu=card.name,
        operation=held_out.batch.operation,
        dtype=held_out.batch.dtype,
        rows=len(error),
        before=None if before is None else float(np.abs(np.expm1(before)).mean()),
        after=float(np.abs(np.expm1(error)).mean()),
        median=float(np.median(np.abs(np.expm1(error)))),
        coverage=float((np.abs(error) <= half_width).mean()),
    )


def _write(
    tuned: Mapping[str, Mapping[str, NetworkWeights]],
    factors: Mapping[str, Mapping[str, MeasuredFactor]],
    tasks: Sequence[_Task],
    scores: Sequence[OwnScore],
    shipped: LoadedWeights,
    output: Path,
    seed: int,
) -> None:
    """Write a file per GPU, with the shipped networks of other families, and the manifest."""
    output.mkdir(parents=True, exist_ok=True)
    for old in output.glob("*.safetensors"):
        old.unlink()
    entries = {}
    for name in [name for name in factors if tuned[name] or factors[name]]:
        networks = tuned[name]
        known = shipped.gpus.get(name)
        networks = {**(known.families if known else {}), **{k: with_constants_in_bias(v) for k, v in networks.items()}}
        sources = (*(known.sources if known else ()), SOURCE)
        path = output / file_name(name)
        write_weights(GpuWeights(name, networks, RECIPE_NAME, seed, sources, factors[name]), path)
        pairs = {pair for network in networks.values() for pair in network.trained}
        pairs |= {(key.split("/")[0], key.split("/")[1]) for key in factors[name]}
        content = path.read_bytes()
        entries[path.name] = ManifestEntry(
            sha256=sha256(content),
            bytes=len(content),
            gpu=name,
            operations=tuple(sorted({operation for operation, _ in pairs})),
            dtypes=tuple(sorted({dtype for _, dtype in pairs})),
            trained_on=sources,
            rows=sum(
                fitted_rows(task.groups, seed)
                for task in tasks
                if task.gpu.name == name and task.family.name in tuned[name]
            )
            + sum(factor.rows for factor in factors[name].values()),
            held_out_error={
                f"{score.operation}/{score.dtype}": HeldOutError(
                    rows=score.rows,
                    mean=round(score.after, 4),
                    median=round(score.median, 4),
                    coverage=round(score.coverage, 3),
                )
                for score in scores
                if score.gpu == name and score.refused is None
            },
        )
    manifest = Manifest(recipe=RECIPE_NAME, seed=seed, files=entries)
    (output / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
