"""Renews the configurations that ship: reads the config.json of each listed model from the Hugging Face Hub.

    python -m benchmarks.configurations                  # all models of models.json, `make configurations`
    python -m benchmarks.configurations hf:Qwen/Qwen3-8B # adds or renews one

A model that cannot be read (it needs HF_TOKEN, or the network is away) keeps its row with its older source and date.
Keys that change no shape and no operation (tokens, initialisation, dropout rates, rotary bases) are left out.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

import requests

from lightning_predict.record.named_models.names import MODELS_FILE

HUB: Final = "https://huggingface.co"
PLACES: Final[Mapping[str, Sequence[str]]] = {"hf": ("",), "diffusers": ("transformer/", "unet/", "")}
"""Folders of config.json in a repository, the first that exists."""

LEFT_OUT: Final = frozenset(
    "transformers_version _name_or_path torch_dtype dtype initializer_range initializer_factor init_std use_cache "
    "bos_token_id eos_token_id rope_theta rope_scaling rope_parameters rms_norm_eps layer_norm_eps layer_norm_epsilon "
    "norm_eps norm_epsilon quantization_config attention_dropout resid_pdrop embd_pdrop attn_pdrop dropout auto_map "
    "attention_probs_dropout_prob hidden_dropout_prob activation_dropout classifier_dropout task_specific_params "
    "id2label label2id tokenizer_class pretraining_tp suppress_tokens begin_suppress_tokens forced_decoder_ids "
    "_diffusers_version".split()
)


def read_from_hub(library: str, name: str) -> dict[str, Any] | None:
    """Return the config.json of a model; None if it cannot be read."""
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    for folder in PLACES[library]:
        try:
            answer = requests.get(f"{HUB}/{name}/resolve/main/{folder}config.json", headers=headers, timeout=30)
        except requests.RequestException:
            return None
        if answer.ok:
            content: dict[str, Any] = answer.json()
            return content
    return None


def shape_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that determine operations and shapes."""
    keys = {}
    for key, value in content.items():
        if key not in LEFT_OUT:  # a null may differ from the default: DeepSeek-V2-Lite's q_lora_rank
            keys[key] = shape_keys(value) if isinstance(value, Mapping) else value
    if isinstance(labels := content.get("id2label"), Mapping):
        keys["num_labels"] = len(labels)
    return keys


def renewed(
    document: Mapping[str, Any], models: Sequence[tuple[str, str]], read: Callable[[str, str], dict[str, Any] | None]
) -> tuple[dict[str, Any], list[str]]:
    """Return the document with the configurations that could be read, and the names of the others."""
    fresh = json.loads(json.dumps(document))
    today = f"hub {date.today()}"
    fresh["sources"][today] = {"text": "the model's config.json on the Hub", "url": HUB, "date": f"{date.today()}"}
    kept = []
    for library, name in models:
        content = read(library, name)
        if content is None:
            kept.append(f"{library}:{name}")
            continue
        row = fresh[library].setdefault(name, {})
        row |= {"source": today, "config": shape_keys(content)}
    used = {row["source"] for library in PLACES for row in fresh[library].values()}
    fresh["sources"] = {name: source for name, source in fresh["sources"].items() if name in used}
    return fresh, kept


def written(document: Mapping[str, Any]) -> str:
    """Return the document as JSON with one line per source and model, so that a difference shows the models."""
    parts = []
    for table, rows in document.items():
        ordered = sorted(rows.items(), key=lambda row: str(row[0]).lower())
        lines = (f"{json.dumps(key)}: {json.dumps(row, ensure_ascii=False)}" for key, row in ordered)
        parts.append(f'"{table}": {{\n' + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(words: Sequence[str], file: Path = MODELS_FILE) -> None:
    """Renew the named models, or all."""
    document = json.loads(file.read_text(encoding="utf-8"))
    listed = [(library, name) for library in PLACES for name in document[library]]
    asked = [(library, name) for library, _, name in (word.partition(":") for word in words)]
    fresh, kept = renewed(document, asked or listed, read_from_hub)
    file.write_text(written(fresh), encoding="utf-8")
    print(f"{len(asked or listed) - len(kept)} configurations renewed. Kept as they were: {', '.join(kept) or 'none'}.")


if __name__ == "__main__":
    main(sys.argv[1:])
