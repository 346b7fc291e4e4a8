"""Our own steps on an H200 (`benchmarks/measured/H200-SXM-141GB`), recorded anew on the meta device.

`forecast_ms` of the file is what was predicted on that day, before the steps were measured; today's code is scored
beside it. Seven of the twelve steps were recorded as well, and constants were read off these recordings.
`item_errors` compares the recorded kernels of each operation with the operation predicted alone, from its shapes.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
from rich.table import Table
from torch import Tensor, nn

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.score import Scored
from benchmarks.accuracy.workloads.recorded import tf32
from benchmarks.accuracy.workloads.vision import import_torchvision
from benchmarks.result_files import Result
from benchmarks.training.report import report_table

FOLDER: Final = Path(__file__).parents[2] / "measured" / "H200-SXM-141GB"
GPU: Final = "H200-SXM-141GB"

SOURCES: Final[Mapping[tuple[str, str], str]] = {
    ("timm convnext_tiny", "bf16-mixed"): "convnext_tiny_128",
    ("timm swin_tiny", "bf16-mixed"): "swin_tiny_128",
    ("hf bert-large", "16-mixed"): "bert-large_16",
    ("timm regnety_032", "bf16-mixed"): "regnety_032_128",
    ("timm vit_small_patch16_224", "tf32"): "vit_small_patch16_224_tf32_128",
    ("hf t5-base", "bf16-mixed"): "t5-base_16",
    ("torchvision vgg16", "bf16-mixed"): "vgg16_64",
}
"""Recordings of steps that constants were read off, by model and precision."""

ATTENTION_BACKWARD: Final = "aten::scaled_dot_product_attention_backward"
ITEMS: Final = "operation by operation"
NET, EACH = "net error %", "item-by-item error %"
NOISE: Final = 0.1  # Points of an error that count as no change

Loss = Callable[[], Tensor]


def own_cases(_data: Path) -> Iterator[Case]:
    """Yield the steps that were predicted before they were measured, with their memory."""
    for step in measured_steps():
        model, precision, batch = step["model"], step["precision"], int(step["batch"])
        known: dict[str, Any] = {
            "source": "bound by the host" if is_host_bound(step) else "bound by the device",
            "model": f"{model} {precision}, batch {batch}",
            "gpu": GPU,
            "step": Step(
                name=f"own-{model}-{precision}-{batch}",
                record=partial(recorded, model, precision, batch, last=step["channels_last"]),
            ),
            "release": "2.11",
            "chosen_on": (model, precision) in SOURCES,
        }
        yield Case(measured=statistics.median(step["seconds"]), **known)
        for quantity in ("allocated", "reserved"):
            yield Case(measured=float(step[f"{quantity}_bytes"]), quantity=quantity, **known)


def measured_steps() -> list[dict[str, Any]]:
    """Read the steps that have a forecast of the day."""
    document = json.loads((FOLDER / "steps.json").read_text(encoding="utf-8"))
    return [step for step in document["steps"] if "forecast_ms" in step]


def is_host_bound(step: Mapping[str, Any]) -> bool:
    """Return whether the host was done last: after 97 % of the loop's time or more."""
    return bool(statistics.median(step["host_seconds"]) >= 0.97 * statistics.median(step["seconds"]))


def recorded(model: str, precision: str, batch: int, *, last: bool) -> lp.Trace:
    """Record a step with AdamW on the meta device.

    Args:
        model: Package and name, as in the file.
        precision: Lightning's name of a precision, or `tf32`.
        batch: Samples.
        last: Channels last.
    """
    import_torchvision()
    with torch.device("meta"):
        network, loss = _text_model(model, batch) if model.startswith("hf ") else _image_model(model, batch, last=last)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    with tf32(products=precision == "tf32", convolutions=precision == "tf32"):
        trace = lp.capture(step, precision=None if precision == "tf32" else precision, samples_per_step=batch)
    return _as_of_that_day(trace)


def _as_of_that_day(trace: lp.Trace) -> lp.Trace:
    """Give attention T5's position bias as transformers did: permuted from (query, key, head), not copied in rows."""

    def changed(one: Any) -> Any:
        has_bias = "attention" in one.name and one.arguments.get("attn_mask") and one.inputs[3].dtype == "float32"
        return replace(one, arguments={**one.arguments, "mask_stride": one.inputs[3].shape[1]}) if has_bias else one

    return replace(trace, operations=tuple(map(changed, trace.operations)))


def _image_model(model: str, batch: int, *, last: bool) -> tuple[nn.Module, Loss]:
    package, _, name = model.partition(" ")
    if package == "timm":
        network: Any = import_module("timm").create_model({"swin_tiny": "swin_tiny_patch4_window7_224"}.get(name, name))
    else:
        network = import_module("torchvision").models.get_model(name, weights=None)
    layout = torch.channels_last if last else torch.contiguous_format
    network = network.train().to(memory_format=layout)
    images = torch.empty(batch, 3, 224, 224).to(memory_format=layout)
    labels = torch.zeros(batch, dtype=torch.long)
    return network, lambda: nn.functional.cross_entropy(network(images), labels)


def _text_model(model: str, batch: int) -> tuple[nn.Module, Loss]:
    """BERT-base classifies 128 tokens, BERT-large answers questions of 384; T5 reads and writes 256."""
    transformers: Any = import_module("transformers")

    def tokens(length: int) -> Tensor:
        return torch.zeros(batch, length, dtype=torch.long)

    label = torch.zeros(batch, dtype=torch.long)
    network: Any
    if model == "hf bert-base":
        network = transformers.BertForSequenceClassification(transformers.BertConfig())
        inputs = {"input_ids": tokens(128), "labels": label}
    elif model == "hf bert-large":
        sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        network = transformers.BertForQuestionAnswering(transformers.BertConfig(**sizes))
        inputs = {"input_ids": tokens(384), "start_positions": label, "end_positions": label}
    else:
        network = transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0, pad_token_id=0
            )
        )
        inputs = {"input_ids": tokens(256), "labels": tokens(256)}
    network.train()
    return network, lambda: network(**inputs).loss


def item_errors(trace: lp.Trace) -> tuple[float, float, float]:
    """Return measured seconds of the kernels, and net and item-by-item error of the operations as shares of them.

    Args:
        trace: A recording of this GPU, with kernels.
    """
    trace = _joined(trace)
    untimed = trace.untimed()
    bare = replace(
        untimed,
        operations=tuple(
            replace(one, kernels=(), host_seconds=None, host_start_seconds=None) for one in untimed.operations
        ),
        step_seconds=(),
        profiled_seconds=None,
    )
    known: dict[Any, float] = {}
    pairs: list[tuple[float, float]] = []
    for measured, one in zip(trace.operations, bare.operations, strict=True):
        shapes = tuple((tensor.shape, tensor.dtype, tensor.stored_elements) for tensor in (*one.inputs, *one.outputs))
        key = (one.name, one.phase, shapes, str(one.arguments))
        if key not in known:
            known[key] = _alone(bare, one)
        pairs.append((math.fsum(kernel.seconds for kernel in measured.kernels), known[key]))
    total = math.fsum(seconds for seconds, _ in pairs)
    net = math.fsum(predicted for _, predicted in pairs) / total - 1
    return total, net, math.fsum(abs(predicted - seconds) for seconds, predicted in pairs) / total


def _joined(trace: lp.Trace) -> lp.Trace:
    """Join the two parts into which the recorder of that day took the backward pass of an attention call.

    The cast of the mask was a call of its own, and the part that was not matched has no outputs.
    """
    joined: list[Any] = []
    for operation in trace.operations:
        before = joined[-1] if joined else None
        if before is None or not operation.name == before.name == ATTENTION_BACKWARD:
            joined.append(operation)
            continue
        whole = before if before.outputs else operation
        joined[-1] = replace(whole, kernels=(*before.kernels, *operation.kernels))
    return replace(trace, operations=tuple(joined))


def _alone(trace: lp.Trace, operation: Any) -> float:
    """Predict the device seconds of one operation of a step."""
    try:
        return lp.predict(replace(trace, operations=(operation,)), [GPU], history=False)[GPU].device_seconds
    except lp.LightningPredictError:
        return 0.0  # it runs nothing on the device


def item_rows() -> Sequence[tuple[str, float, float, float]]:
    """Return name, seconds, net and item-by-item error of each recording."""
    paths = sorted((FOLDER / "recordings").glob("*.json.gz"))
    return [(path.name.removesuffix(".json.gz"), *item_errors(lp.Trace.load(str(path)))) for path in paths]


def forecast_tables(scored: Sequence[Scored]) -> Iterator[Table]:
    """Yield the steps with the forecast of the day, and the recordings with net and item-by-item errors.

    Args:
        scored: Scored cases of `own_cases`.
    """
    now = {score.case.model: score for score in scored if score.case.quantity == "time"}
    table = report_table(
        "own-gpu: forecasts of the day, before the steps were measured",
        ("model", "constants read off"),
        ("measured ms", "that day ms", "error of that day %", "today ms", "error today %"),
    )
    for step in measured_steps():
        today = now.get(f"{step['model']} {step['precision']}, batch {step['batch']}")
        if today is not None:
            measured, day = 1e3 * today.case.measured, step["forecast_ms"][0]
            numbers = (f"{measured:.1f}", f"{day:.1f}", f"{100 * (day / measured - 1):+.1f}")
            ours = (f"{1e3 * today.predicted[1]:.1f}", f"{100 * today.error:+.1f}")
            table.add_row(today.case.model, "yes" if today.case.chosen_on else "no", *numbers, *ours)
    yield table
    items = report_table(
        "own-gpu: GPU time of recordings, operation by operation",
        ("recording", "constants read off"),
        ("measured ms", NET, EACH),
    )
    rows = item_rows()
    for name, seconds, net, each in rows:
        read_off = "yes" if name in SOURCES.values() else "no"
        items.add_row(name, read_off, f"{1e3 * seconds:.1f}", f"{100 * net:+.1f}", f"{100 * each:.1f}")
    total = math.fsum(seconds for _, seconds, _, _ in rows)
    net, each = (
        math.fsum(seconds * error for seconds, error in pairs) / total
        for pairs in ([(row[1], row[2]) for row in rows], [(row[1], row[3]) for row in rows])
    )
    items.add_row("all", "", f"{1e3 * total:.1f}", f"{100 * net:+.1f}", f"{100 * each:.1f}")
    yield items


def why_refused(before: Result, after: Result) -> str | None:
    """Return why a result is refused: the recordings' items are worse, whatever their net error, which may cancel.

    Args:
        before: The result that is kept.
        after: The new result.
    """
    figures = {
        name: [abs(float(result.figure(f"{ITEMS} / all / {name}").value)) for result in (before, after)]
        for name in (NET, EACH)
    }
    if figures[EACH][1] <= figures[EACH][0] + NOISE:
        return None
    (net, new_net), (each, new_each) = figures[NET], figures[EACH]
    return f"the items' error rises from {each} to {new_each} %, with a net error of {net} before and {new_net} % now."
