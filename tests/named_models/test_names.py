"""Names of models, paths of configurations, and the configurations that ship."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.configurations import renewed, written
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.named_models import names
from lightning_predict.record.named_models.names import parse_model_name, shipped, shipped_models
from lightning_predict.record.named_models.options import StepOptions


def test_names_have_a_library_and_shipped_configurations_a_source() -> None:
    parsed = parse_model_name("hf:Qwen/Qwen2.5-7B")
    assert (parsed.library, parsed.name, parsed.configuration) == ("hf", "Qwen/Qwen2.5-7B", None)
    entry = shipped("hf", "qwen/qwen2.5-7b-instruct")
    assert (entry.name, entry.config["num_key_value_heads"]) == ("Qwen/Qwen2.5-7B", 4)
    assert entry.url.startswith("https://")
    assert entry.date >= "2026"
    models = {model.name for library in ("hf", "diffusers") for model in shipped_models(library).values()}
    assert len(models) >= 150
    with pytest.raises(InvalidArgumentError, match=r"with this package\. Otherwise fetch"):
        shipped("hf", "facebook/musicgen-small")
    assert StepOptions().numbers().word == "bf16-mixed"
    assert StepOptions(lora=8).numbers().word == "bf16-true"


@pytest.mark.parametrize("text", ["knows-this", "keras:resnet50", "hf:", ""])
def test_unknown_name_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is not known\. Expected for example hf:Qwen/Qwen2\.5-7B, timm:"):
        parse_model_name(text)


@pytest.mark.parametrize("text", ["nobody/knows-this", "hf:nobody/knows-this", "diffusers:nobody/knows-this"])
def test_unknown_name_is_rejected_with_the_command_that_fetches_its_configuration(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="repeat the command: hf download nobody/knows-this --include"):
        parse_model_name(text)


def test_configuration_in_the_cache_of_the_hub_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"_class_name": "UNet2DModel"}', encoding="utf-8")
    places = {"nobody/knows-this/unet/config.json": str(file)}
    hub = SimpleNamespace(try_to_load_from_cache=lambda name, path: places.get(f"{name}/{path}"))
    own = {"huggingface_hub": hub, "timm": SimpleNamespace(is_model=lambda name: False)}
    own["torchvision"] = SimpleNamespace(models=SimpleNamespace(list_models=list))
    monkeypatch.setattr("lightning_predict.record.named_models.names.import_module", own.__getitem__)
    assert parse_model_name("nobody/knows-this").library == "diffusers"


@pytest.mark.parametrize("text", ["gpt2", "Qwen/Qwen2.5-7B", "Qwen2.5-7B", "Meta-Llama-3.1-8B-Instruct-bnb-4bit"])
def test_name_without_a_library_is_found_among_what_ships(text: str) -> None:
    parsed = parse_model_name(text)
    assert parsed.library == "hf"
    assert shipped("hf", parsed.name)


def test_name_without_a_library_is_looked_up_in_timm_and_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = {
        "timm": SimpleNamespace(is_model=lambda name: name == "vit_tiny"),
        "torchvision": SimpleNamespace(models=SimpleNamespace(list_models=lambda: ["resnet18"])),
    }
    monkeypatch.setattr("lightning_predict.record.named_models.names.import_module", libraries.__getitem__)
    assert parse_model_name("vit_tiny.augreg_in1k").library == "timm"
    assert parse_model_name("resnet18").library == "torchvision"


@pytest.mark.parametrize(
    ("content", "library", "name"),
    [
        ({"model_type": "gpt2"}, "hf", "mine"),
        ({"architecture": "resnet50", "num_classes": 10}, "timm", "resnet50"),
        ({"_class_name": "UNet2DModel"}, "diffusers", "mine"),
    ],
)
def test_folder_with_a_configuration_is_read(
    tmp_path: Path, content: dict[str, object], library: str, name: str
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    for text in (str(folder), str(folder / "config.json"), f"{library}:{folder}"):
        parsed = parse_model_name(text)
        assert (parsed.library, parsed.name, parsed.configuration) == (library, name, content)


def test_folders_with_a_denoiser_are_found_and_those_without_a_configuration_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"has no config\.json; give that file"):
        parse_model_name(str(tmp_path))
    (tmp_path / "unet").mkdir()
    (tmp_path / "model_index.json").write_text("{}", encoding="utf-8")
    (tmp_path / "unet" / "config.json").write_text('{"_class_name": "UNet2DModel"}', encoding="utf-8")
    assert parse_model_name(str(tmp_path)).library == "diffusers"
    (tmp_path / "config.json").write_text('{"layers": 3}', encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="has none of the keys _class_name, model_type, architecture"):
        parse_model_name(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen/Qwen2.5-7B"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "meta-llama/Meta-Llama-3.1-70B"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "meta-llama/Meta-Llama-3.1-8B"),
        ("NousResearch/Llama-2-7b-chat-hf", "meta-llama/Llama-2-7b-hf"),
        ("Qwen/Qwen3-8B-FP8", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-4B"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-V3"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
        ("dslim/distilbert-base-uncased-finetuned-emotion", "distilbert/distilbert-base-uncased"),
        ("someone/whisper-small-hi", "openai/whisper-small"),
        ("someone/vit-base-patch16-224-in21k-finetuned-cifar10", "google/vit-base-patch16-224"),
    ],
)
def test_name_that_differs_in_weights_only_finds_the_configuration(name: str, found: str) -> None:
    assert shipped("hf", name).name == found


@pytest.mark.parametrize(
    "name",
    [
        "bert-uncased",
        "roberta",
        "Llama-2-8b",
        "Qwen/Qwen3-9B",
        "whisper-large-v4",
        "phi-2-mini",
        "roberta-base-japanese",
        "microsoft/Phi-4-multimodal-instruct",
        "clip-vit-base-patch32-xlm-roberta",
    ],
)
def test_name_of_another_size_finds_no_configuration(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"does not ship|is not known\."):
        shipped("hf", name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("qwen/qwen2.5-7", r"Qwen/Qwen2.5-7B or .*\? Otherwise fetch it"),
        ("gtp2", r"gpt2\?"),
        ("mixtral", "mistralai/Mixtral-8x7B"),
        ("resnt50", "(microsoft/)?resnet-?50"),
    ],
)
def test_unknown_name_suggests_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"Did you mean {meant}"):
        parse_model_name(name)


@pytest.mark.parametrize("prefix", ["hf", "timm", "torchvision"])
def test_name_of_another_library_is_told_without_the_prefix(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "find_spec", lambda name: name)
    name = "stabilityai/stable-diffusion-xl-base-1.0"
    with pytest.raises(InvalidArgumentError, match=f"is diffusers:{name}; give the name without {prefix}:"):
        parse_model_name(f"{prefix}:{name}")


def test_name_of_timm_is_told_without_the_prefix_of_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = SimpleNamespace(is_model=lambda name: name == "vit_base_patch16_224")
    torchvision = SimpleNamespace(models=SimpleNamespace(list_models=lambda: ["resnet50"]))
    libraries = {"timm": timm, "torchvision": torchvision}
    monkeypatch.setattr(names, "import_module", libraries.__getitem__)
    monkeypatch.setattr(names, "find_spec", libraries.get)
    monkeypatch.setattr(names, "_cached_configuration", lambda name: None)
    with pytest.raises(InvalidArgumentError, match="is timm:vit_base_patch16_224; give the name without torchvision:"):
        parse_model_name("torchvision:vit_base_patch16_224")
    assert parse_model_name("torchvision:resnet50").library == "torchvision"


def test_renewed_configuration_replaces_a_row_and_an_unread_one_keeps_its_source() -> None:
    old = {"text": "an older source", "url": "https://example.com", "date": "2026-01-01"}
    rows = {name: {"source": "old", "config": {"hidden_size": 8}} for name in ("a/b", "c/d")}
    values = {"torch_dtype": "bfloat16", "q_lora_rank": None, "text_config": {"dtype": "x", "heads": 2}}
    read = {"a/b": {"hidden_size": 16, **values}}
    document, kept = renewed(
        {"sources": {"old": old}, "hf": rows, "diffusers": {}}, [("hf", "a/b"), ("hf", "c/d")], lambda _, n: read.get(n)
    )
    assert kept == ["hf:c/d"]
    assert document["hf"]["a/b"]["config"] == {
        "hidden_size": 16,
        "q_lora_rank": None,  # not the default of transformers, which is 1,536 for DeepSeek-V2
        "text_config": {"heads": 2},
    }
    assert shipped("hf", "deepseek-ai/DeepSeek-V2-Lite").config["q_lora_rank"] is None
    assert document["hf"]["c/d"] == rows["c/d"]
    assert set(document["sources"]) == {"old", document["hf"]["a/b"]["source"]}
    assert json.loads(written(document)) == document


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"batch_size": 0}, "batch_size=0; expected a whole number of at least 1"),
        ({"optimizer": "lion"}, "optimizer='lion'; expected one of adamw, adam, sgd"),
        ({"precision": "int8"}, "precision='int8' is not known"),
        ({"lora_targets": "q_proj"}, "needs LoRA, whose layers it names: add lora=16"),
        ({"recipe": "ema"}, "recipe='ema'; expected of reference, encoders, autocast"),
        ({"recipe": "float32-rest", "lora": 8}, "recipe=float32-rest has no effect without quantization="),
    ],
)
def test_invalid_options_are_rejected(values: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        StepOptions(**values)  # type: ignore[arg-type]
