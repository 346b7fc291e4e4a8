"""Configurations of open models that ship with the package (`models.toml`), each with its source.

Example::

    >>> shipped("hf", "Qwen/Qwen2.5-7B").config["hidden_size"]
    3584
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, final

from lightning_predict.base.checked import nearest, read_toml
from lightning_predict.base.errors import CatalogueError, InvalidArgumentError

MODELS_FILE: Final = Path(__file__).with_name("models.toml")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedModel:
    """Configuration of an open model.

    Attributes:
        name: Name of the model on the Hugging Face Hub.
        also: Names of models with the same configuration.
        config: Keys of the model's config.json that determine operations and shapes.
        source: Title of the source.
        url: Address of the source.
        date: ISO date of the source, or of reading the source.
    """

    name: str
    also: tuple[str, ...]
    config: Mapping[str, Any]
    source: str
    url: str
    date: str


@cache
def shipped_models(library: str) -> Mapping[str, ShippedModel]:
    """Return the shipped configurations of a library, by each name in lower case."""
    document = read_toml(MODELS_FILE, CatalogueError)
    sources = {name: one.members() for name, one in document.member("sources").members().items()}
    found: dict[str, ShippedModel] = {}
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
        )
        found |= {each.lower(): model for each in (name, *model.also)}
    return found


def shipped(library: str, name: str) -> ShippedModel:
    """Return the shipped configuration of a model.

    Raises:
        InvalidArgumentError: No configuration ships for this model.
    """
    models = shipped_models(library)
    found = models.get(name.lower())
    if found is None:
        raise InvalidArgumentError(
            f"The configuration of {name!r} does not ship with this package. {nearest(name.lower(), models)} Download "
            "the config.json of the model and give its path."
        )
    return found
