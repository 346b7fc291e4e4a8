"""Parses the name of a model: `library:name`, a name alone, or the path of a configuration. Reads what ships.

Example::

    >>> parse_model_name("timm:vit_base_patch16_224").library
    'timm'
    >>> shipped("hf", "Qwen/Qwen2.5-7B").config["hidden_size"]
    3584
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from lightning_predict.base.checked import Checked, read_json, shown
from lightning_predict.base.errors import CatalogueError, InvalidArgumentError

Library = Literal["hf", "timm", "torchvision", "diffusers"]

EXAMPLES: Final = (
    "hf:Qwen/Qwen2.5-7B, timm:vit_base_patch16_224, torchvision:resnet50, diffusers:facebook/DiT-XL-2-256, or the "
    "path of a folder with config.json"
)

_KEYS: Final[dict[str, Library]] = {"_class_name": "diffusers", "model_type": "hf", "architecture": "timm"}
"""Libraries by the key that identifies their config.json."""

_DENOISERS: Final = ("unet", "transformer")  # Folders of a diffusers pipeline that may contain the trained model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A model to build."""

    text: str
    library: Library
    name: str
    configuration: dict[str, Any] | None = None  # Content of a config.json; None if only the name is given


def parse_model_name(text: str) -> ModelName:
    """Parse `library:name` or a name alone, or read the configuration at a path."""
    prefix, colon, name = text.partition(":")
    library = next((candidate for candidate in get_args(Library) if colon and candidate == prefix), None)
    place = text if library is None else name
    file = _configuration_at(Path(place)) if place else None
    if file is not None:
        return _configured(text, file)
    if library is None or not name:
        if place and Path(place).is_dir():
            raise InvalidArgumentError(f"model={shown(text)} has no config.json; give that file of the model.")
        if colon or not text:
            raise InvalidArgumentError(_refusal(text))
        library, name = _library_of(text), text
    is_told = library in ("hf", "diffusers") or (library is not None and find_spec(library) is not None)
    if colon and is_told and not _knows(library or "hf", name) and _cached_configuration(name) is None:
        elsewhere = _library_of(name)
        if elsewhere not in (None, library):
            raise InvalidArgumentError(f"{shown(text)} is {elsewhere}:{name}; give the name without {prefix}:.")
    if library not in ("timm", "torchvision") and _shipped(library or "hf", name) is None:
        cached = _cached_configuration(name)
        if cached is not None:
            return _configured(text, cached)
        raise InvalidArgumentError(_refusal(name))
    return ModelName(text=text, library=library or "hf", name=name)


def _library_of(name: str) -> Library | None:
    """Return the library that knows a name without a prefix: names as they ship first; None if none knows it."""
    lower = name.lower()
    for library in get_args(Library):
        if any(lower in (known, known.rpartition("/")[2]) for known in shipped_models(library)):
            return cast("Library", library)
    return next((library for library in ("timm", "torchvision", *get_args(Library)) if _knows(library, name)), None)


def _knows(library: Library, name: str) -> bool:
    """Return whether a library has a model of this name, or its configuration ships."""
    bare = name.lower().rpartition("/")[2]
    with suppress(ImportError):
        if library == "timm":
            return bool(import_module("timm").is_model(bare.partition(".")[0]))
        if library == "torchvision":
            return bare in import_module("torchvision").models.list_models()
    return _shipped(library, name) is not None


def _cached_configuration(name: str) -> Path | None:
    """Return the configuration of a model or of a pipeline's denoiser in the cache of the Hugging Face Hub."""
    with suppress(ImportError, ValueError):  # a ValueError for what cannot be a name
        cached = import_module("huggingface_hub").try_to_load_from_cache
        files = (cached(name, f"{folder}config.json") for folder in ("", *(f"{part}/" for part in _DENOISERS)))
        return next((Path(file) for file in files if isinstance(file, str)), None)
    return None


def _refusal(name: str) -> str:
    """Return an error message with the most similar names."""
    names = [one for library in get_args(Library) for model in shipped_models(library).values() for one in model.names]
    for module in ("timm", "torchvision.models"):
        with suppress(ImportError):
            names += import_module(module).list_models()
    by_word = {one.lower().rpartition("/")[2]: one for one in names}
    word = name.lower().rpartition("/")[2]
    near = difflib.get_close_matches(word, by_word, n=3, cutoff=0.7)
    near = [one for one in near if one[:1] == word[:1]]  # `wav2vec2` is no typing error of `roberta`
    longer = sorted((one for one in by_word if len(word) > 2 and one.startswith(word)), key=len)[:3]  # `mixtral`
    alike = [by_word[one] for one in longer or near]
    meant = f"Did you mean {' or '.join(alike)}? " if alike else ""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return f"model={shown(name)} is not known. {meant}Expected for example {EXAMPLES}."
    return (
        f"The configuration of {name} does not ship with this package. {meant}Otherwise fetch it, and repeat the "
        f"command: hf download {name} --include '*config.json'"
    )


def _configuration_at(path: Path) -> Path | None:
    """Return the configuration file at a path, in this folder, or of a pipeline's denoiser; None without one."""
    if path.is_file():
        return path
    places = [path / "config.json", *(path / part / "config.json" for part in _DENOISERS)]
    return next((place for place in places if place.is_file()), None)


def _configured(text: str, file: Path) -> ModelName:
    """Read a configuration file and determine its library."""
    document: Checked = read_json(file, InvalidArgumentError)
    content = document.mapping()
    library = next((library for key, library in _KEYS.items() if key in content), None)
    if library is None:
        raise InvalidArgumentError(
            f"{file} has none of the keys {', '.join(_KEYS)}; expected the config.json of a model of transformers, "
            "timm or diffusers."
        )
    name = str(content["architecture"]) if library == "timm" else file.resolve().parent.name
    return ModelName(text=text, library=library, name=name, configuration=content)


# --- Configurations of open models that ship with the package (`models.json`), each with its source

MODELS_FILE: Final = Path(__file__).with_name("models.json")

_WEIGHT_WORDS: Final = frozenset(  # Words of names that say how weights were trained or stored
    "instruct it chat hf sft dpo thinking reasoning preview coder math code python bnb 4bit 8bit fp8 bf16 unsloth gptq "
    "awq int4 int8 deduped finetuned guard embedding reranker".split()
)

_SHAPE_WORDS: Final = frozenset(
    "nano tiny mini small medium base large huge giant xl xxl lite air turbo distilled distil moe vl vision visual "
    "image video audio speech omni multimodal multilingual xlm german french spanish italian dutch portuguese polish "
    "russian ukrainian turkish arabic persian hindi bengali vietnamese thai indonesian chinese japanese korean swedish "
    "finnish danish norwegian czech greek hebrew romanian hungarian".split()
)
"""Words of names that say a model has other shapes: those of its size, its inputs or its vocabulary."""

_SIZE: Final = re.compile(r"\d+(\.\d+)?[bm]")
"""Pattern of a number of parameters, such as `7b`. Beside one, `base` is no size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedModel:
    """Configuration of an open model."""

    name: str  # Name of the model on the Hugging Face Hub
    also: tuple[str, ...]  # Names of models with the same configuration
    config: Mapping[str, Any]  # Keys of the model's config.json that determine operations and shapes
    source: str
    url: str
    date: str  # ISO date of the source, or of reading the source
    doubt: str | None  # In what the configuration may differ from the model's own; None if the source is its own

    @property
    def names(self) -> tuple[str, ...]:
        """All names with this configuration."""
        return self.name, *self.also


@cache
def shipped_models(library: str) -> Mapping[str, ShippedModel]:
    """Return the shipped configurations of a library, by each name in lower case."""
    document = read_json(MODELS_FILE, CatalogueError)
    if not document.has(library):
        return {}
    sources = {name: origin.members() for name, origin in document.member("sources").members().items()}
    models: dict[str, ShippedModel] = {}
    for name, row in document.member(library).members().items():
        row.check_keys(("source", "config"), ("also",))
        source = sources[row.member("source").choice(tuple(sources))]
        model = ShippedModel(
            name=name,
            also=row.optional("also", lambda value: value.texts(), ()),
            config=row.member("config").mapping(),
            source=source["text"].words(),
            url=source["url"].url(),
            date=source["date"].date(),
            doubt=source["doubt"].words() if "doubt" in source else None,
        )
        models |= {each.lower(): model for each in model.names}
    return models


def shipped(library: str, name: str) -> ShippedModel:
    """Return the shipped configuration of a model."""
    model = _shipped(library, name)
    if model is None:
        raise InvalidArgumentError(_refusal(name))
    return model


def _shipped(library: str, name: str) -> ShippedModel | None:
    """Return the shipped configuration of a model, or of the model whose weights were trained further."""
    models = shipped_models(library)
    by_word = {key.rpartition("/")[2]: model for key, model in models.items()}
    alike, words = _same_but_weights(models), _without_weight_words(name)
    # A fine-tuned model is named after its base: `Hermes-3-Llama-3.1-8B`, `distilbert-base-uncased-emotion`.
    sized = (one for one in alike if words.endswith(f"-{one}") and _SIZE.fullmatch(one.rpartition("-")[2]))
    first = (one for one in alike if "-" in one and words.startswith(f"{one}-") and _is_of_weights(words[len(one) :]))
    return (
        models.get(name.lower())
        or by_word.get(name.lower())
        or alike.get(words)
        or alike.get(max(sized, key=len, default=""))
        or alike.get(max(first, key=len, default=""))
    )


def _is_of_weights(rest: str) -> bool:
    """Return whether the words after a model's name say nothing of its size, version or language."""
    words = rest.strip("-").split("-")
    is_version = re.match(r"v?\d", words[0])
    return not (is_version or any(word in _SHAPE_WORDS or _SIZE.fullmatch(word) for word in words))


def _same_but_weights(models: Mapping[str, ShippedModel]) -> dict[str, ShippedModel]:
    """Return the models by their names without words for weights, if only one configuration has the name."""
    named: dict[str, dict[str, ShippedModel]] = {}
    for name, model in models.items():
        named.setdefault(_without_weight_words(name), {})[model.name] = model
    return {name: next(iter(candidates.values())) for name, candidates in named.items() if len(candidates) == 1}


def _without_weight_words(name: str) -> str:
    words = re.split(r"[-_ ]", name.lower().rpartition("/")[2])
    is_sized = any(_SIZE.fullmatch(word) for word in words)
    others = {"base", "pt", "meta"} if is_sized else set()
    return "-".join(word for word in words if word not in _WEIGHT_WORDS | others and not re.fullmatch(r"\d{4}", word))
