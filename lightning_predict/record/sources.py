"""`step_of_source`: the step that a command is about: a recorded file, an example that ships, or a model by its name.

A step by name is recorded once, and then read from the cache: `cache_folder()/steps`. Its file is named after what the
recording depends on: the name or configuration, the options, the releases of the libraries, and the code that records.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from lightning_predict.base.errors import InvalidArgumentError, LightningPredictError
from lightning_predict.base.files import cache_folder, named_file
from lightning_predict.base.model_options import NO_OPTIONS, ModelOptions
from lightning_predict.record.imports import load_step
from lightning_predict.record.named_models.names import parse_model_name
from lightning_predict.record.trace import Trace

RECORDED_SUFFIXES: Final = (".json", ".gz", ".pt", ".trace")  # Suffixes of recorded files

_LIBRARIES: Final = ("torch", "transformers", "timm", "torchvision", "diffusers", "peft", "bitsandbytes")
"""Libraries whose releases affect a step by name."""

_KEPT: Final = 64  # Number of recorded steps in the cache; the oldest are deleted

_CODE: Final = Path(__file__).parent


ADAPTERS: Final = 16  # Rank of LoRA's adapters in steps that are proposed, as in most guides and in PEFT's examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Another way to train the same model by name, recorded if `step` is called."""

    changes: tuple[str, ...]  # Descriptions of the changes
    trains_all: bool  # Whether the same parameters are trained
    step: Callable[[], Trace]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStep:
    """The step of a source."""

    trace: Trace
    description: str | None = None
    variants: tuple[Variant, ...] = ()


def step_of_source(
    source: str, options: ModelOptions = NO_OPTIONS, *, save_to: str | os.PathLike[str] | None = None, **more: Any
) -> SourceStep:
    """Return the step of a recorded file, of an example (`example:gpt2`), or of a model by its name.

    Args:
        source: A trace, a profile of `torch.profiler`, `example:NAME`, or a model as for `step_of`.
        options: Options for a model by name.
        save_to: File to write the step to; None writes none.
        more: Further options for a model by name, as for `step_of`.
    """
    own = asdict(options) | more
    given = {name: value for name, value in own.items() if value is not None and value is not False}
    path = _recorded_file(source)
    if path is None:
        step = _named(source, given)
    else:
        if given:
            option = f"--{next(iter(given)).replace('_', '-')}"
            raise InvalidArgumentError(f"{option} has no effect on a recorded step; it is for a model by name.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an unknown GPU also causes a note
            step = SourceStep(trace=load_step(path))
    if save_to is not None:
        step.trace.save(save_to)
    return step


def _recorded_file(source: str) -> Path | None:
    """Return the recorded file of a source; None for a model by name."""
    path = named_file(source)
    if path.is_dir() or path.name == "config.json":
        return None
    if path.suffix == ".py":
        raise InvalidArgumentError(f"{path} is a script; `lightning-predict run {path}` runs it with predictions.")
    return path if path.is_file() or path.suffix in RECORDED_SUFFIXES else None


def _named(source: str, given: Mapping[str, Any]) -> SourceStep:
    """Return the step of a model by name: from the cache, otherwise recorded now."""
    file = _cached_file(source, given)
    trace: Trace | None = None
    if file is not None and file.is_file():
        with suppress(LightningPredictError, OSError):  # a damaged file is recorded again
            trace = Trace.load(file)
    if trace is None:
        from lightning_predict.record.named_models.step import step_of

        trace = step_of(source, **given)
        if file is not None:
            _keep(trace, file)
    own = replace(trace, notes=trace.notes[1:])
    return SourceStep(trace=own, description=trace.notes[0], variants=(*_variants(source, given),))


def _variants(source: str, given: Mapping[str, Any]) -> Iterator[Variant]:
    """Yield the same model with LoRA's adapters, if all is trained, and with frozen weights in 4 bits."""
    adapters = {"lora": ADAPTERS, **given}
    if "lora" not in given and "precision" in given:  # what is frozen needs no copy in float32
        adapters["precision"] = given["precision"].replace("-mixed", "-true")

    def step(**more: str) -> Trace:
        return _named(source, adapters | more).trace

    words = () if "lora" in given else (f"LoRA of rank {ADAPTERS} (--lora {ADAPTERS})",)
    if words:
        yield Variant(changes=words, trains_all=False, step=step)
    if "quantization" not in given:
        four_bits = "frozen weights in 4 bits (--quantization nf4)"
        yield Variant(changes=(*words, four_bits), trains_all=not words, step=partial(step, quantization="nf4"))


def _keep(trace: Trace, file: Path) -> None:
    """Write a step to the cache, and delete the oldest ones."""
    with suppress(OSError):  # for example a read-only home
        file.parent.mkdir(parents=True, exist_ok=True)
        trace.save(file)
        ordered = sorted(file.parent.glob("*.json.gz"), key=lambda path: path.stat().st_mtime)
        for old in ordered[:-_KEPT]:
            old.unlink()


def _cached_file(source: str, given: Mapping[str, Any]) -> Path | None:
    """Return the file of a step in the cache; None if the step depends on files that are not looked at here."""
    library = source.partition(":")[0]
    path = Path(source)
    content = ""
    if path.exists():
        places = [path] if path.is_file() else sorted(path.rglob("config.json"))
        content = "".join(file.read_text(encoding="utf-8", errors="replace") for file in places)
    elif library in ("hf", "diffusers"):
        try:
            content = json.dumps(parse_model_name(source).configuration)
        except InvalidArgumentError:  # the library may have a configuration of its own
            return None
    # Without folders and bytecode: Python writes `__pycache__` during the first recording.
    files = (file for file in _CODE.rglob("*") if file.suffix not in ("", ".pyc"))
    code = sorted((file.name, file.stat().st_mtime_ns) for file in files)
    facts = [str(path.resolve()) if content else source, content, sorted(given.items()), _releases(), code]
    key = hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()
    return cache_folder() / "steps" / f"{key[:32]}.json.gz"


def _releases() -> list[str]:
    releases = []
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            releases.append(f"{name} {version(name)}")
    return releases
