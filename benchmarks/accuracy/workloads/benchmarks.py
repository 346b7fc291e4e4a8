"""The training benchmarks of NVIDIA's DeepLearningExamples, recorded as they run on one GPU.

A step is forward, loss, backward and update. `FP32` is TF32 where the GPU has it; `FP16` and `AMP` keep parameters and
activations in float16 and update float32 copies of the parameters. Example::

    recorded = benchmark_trace("resnet50", precision="AMP", batch=224)
    recorded.units / seconds  # images per second
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, final

import torch
from torch import Tensor, nn

from benchmarks.accuracy.workloads.bert import BERT_BASE, BERT_LARGE, Bert, BertAdam, BertConfig
from benchmarks.accuracy.workloads.gnmt import GNMT, Gnmt
from benchmarks.accuracy.workloads.ncf import MOVIELENS_20M, NeuMf
from benchmarks.accuracy.workloads.recorded import without_pauses
from benchmarks.accuracy.workloads.resnet import ResNet50
from benchmarks.accuracy.workloads.transformer_xl import (
    TRANSFORMER_XL_BASE,
    TRANSFORMER_XL_LARGE,
    TransformerXl,
    TransformerXlConfig,
)
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.tracing.session import CaptureSession
from lightning_predict.tracing.trace import Flags, Trace

SQUAD_LENGTH: Final = 384
SENTENCE_LENGTH: Final = 30
"""Steps that a batch of sentences is padded to. The benchmark sorts WMT16's pairs of up to 50 tokens into five buckets
by the longer sentence; 10 to 50 steps, 30 on average."""
SENTENCE_TOKENS: Final = 23.4
"""Tokens of a sentence without padding, which alone are counted: the published logs' tokens per second times seconds
per step, over sentences."""

LossFunction = Callable[[nn.Module], Tensor]
OptimizerMaker = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@final
@dataclass(frozen=True, slots=True)
class Benchmark:
    """A model with its batch.

    Attributes:
        module: The model in float32, on the meta device.
        loss: One forward pass on the batch.
        optimizer: Makes the optimizer.
        units: Images, sequences, tokens or samples of one step, as the table counts them.
    """

    module: nn.Module
    loss: LossFunction
    optimizer: OptimizerMaker
    units: int


@final
@dataclass(frozen=True, slots=True)
class RecordedBenchmark:
    """One step and what it processed."""

    trace: Trace
    units: int


def _momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4)


def _adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def _resnet50(batch: int, dtype: torch.dtype) -> Benchmark:
    images = torch.zeros(batch, 3, 224, 224, dtype=dtype)
    labels = torch.zeros(batch, dtype=torch.int64)

    def loss(module: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(module(images), labels)

    return Benchmark(ResNet50(), loss, _momentum, batch)


def _bert_adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return BertAdam(parameters)


def _bert(config: BertConfig) -> Callable[[int, torch.dtype], Benchmark]:
    def build(batch: int, dtype: torch.dtype) -> Benchmark:
        tokens = torch.zeros(batch, SQUAD_LENGTH, dtype=torch.int64)
        places = torch.zeros(batch, dtype=torch.int64)

        def loss(module: nn.Module) -> Tensor:
            start, end = module(tokens).unbind(-1)
            return (nn.functional.cross_entropy(start, places) + nn.functional.cross_entropy(end, places)) / 2

        optimizer = _bert_adam if dtype == torch.float32 else _adam
        return Benchmark(Bert(config, head="questions"), loss, optimizer, batch)

    return build


def _gnmt(batch: int, _dtype: torch.dtype) -> Benchmark:
    source, target, labels = (torch.zeros(SENTENCE_LENGTH, batch, dtype=torch.int64) for _ in range(3))

    def loss(module: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(module(source, target).flatten(0, 1), labels.flatten(), label_smoothing=0.1)

    return Benchmark(Gnmt(GNMT), loss, _adam, round(2 * SENTENCE_TOKENS * batch))


def _ncf(batch: int, dtype: torch.dtype) -> Benchmark:
    users, items = torch.zeros(batch, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)
    labels = torch.zeros(batch, 1, dtype=dtype)

    def loss(module: nn.Module) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(module(users, items), labels)

    return Benchmark(NeuMf(MOVIELENS_20M), loss, _adam, batch)


def _transformer_xl(config: TransformerXlConfig) -> Callable[[int, torch.dtype], Benchmark]:
    def build(batch: int, dtype: torch.dtype) -> Benchmark:
        tokens, targets = (torch.zeros(config.length, batch, dtype=torch.int64) for _ in range(2))
        memories = [torch.zeros(config.length, batch, config.hidden, dtype=dtype) for _ in range(config.layers)]

        def loss(module: nn.Module) -> Tensor:
            result: Tensor = module(tokens, targets, memories)
            return result

        return Benchmark(TransformerXl(config), loss, _adam, config.length * batch)

    return build


BENCHMARKS: Final[Mapping[str, Callable[[int, torch.dtype], Benchmark]]] = {
    "resnet50": _resnet50,
    "bert_base_squad": _bert(BERT_BASE),
    "bert_large_squad": _bert(BERT_LARGE),
    "gnmt": _gnmt,
    "transformerxlbase": _transformer_xl(TRANSFORMER_XL_BASE),
    "transformerxllarge": _transformer_xl(TRANSFORMER_XL_LARGE),
    "ncf": _ncf,
}
"""Benchmarks by the table's name."""

PRECISIONS: Final[Mapping[str, torch.dtype]] = {"FP32": torch.float32, "FP16": torch.float16, "AMP": torch.float16}


@cache
def units_per_sample(name: str) -> float:
    """Images, sequences, tokens or samples of one sample of a batch; `name` is a key of `BENCHMARKS`."""
    with torch.device("meta"):
        return BENCHMARKS[name](1000, torch.float32).units / 1000  # a thousand, as some are rounded


def benchmark_trace(name: str, *, precision: str, batch: int) -> RecordedBenchmark:
    """One training step of a benchmark on the meta device.

    Raises:
        InvalidArgumentError: A benchmark or precision that is not known.
    """
    if name not in BENCHMARKS or precision not in PRECISIONS:
        raise InvalidArgumentError(
            f"Benchmark {name!r} in {precision!r} is not known; the benchmarks are {', '.join(BENCHMARKS)}, the "
            f"precisions {', '.join(PRECISIONS)}."
        )
    dtype = PRECISIONS[precision]
    with torch.device("meta"):
        benchmark = BENCHMARKS[name](batch, dtype)
        trace = _recorded(benchmark, dtype)
    flags = Flags(matmul_tf32=True, cudnn_tf32=True, cudnn_benchmark=True)
    return RecordedBenchmark(replace(trace, flags=flags, samples=batch), benchmark.units)


def _recorded(benchmark: Benchmark, dtype: torch.dtype) -> Trace:
    module = benchmark.module.train()
    masters = list(module.parameters())
    if dtype == torch.float16:
        masters = [nn.Parameter(parameter.detach().clone()) for parameter in masters]
        module.half()
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):  # statistics stay in float32
                layer.float()
    optimizer = benchmark.optimizer(masters)

    def step() -> None:
        module.zero_grad(set_to_none=True)
        benchmark.loss(module).backward()
        if dtype == torch.float16:
            _update_copies(module, masters, optimizer)
        else:
            optimizer.step()

    for parameter in masters:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()  # makes its state
    step()  # the first one imports, which would count as Python work of the step
    session = CaptureSession(device=torch.device("meta"), model=module, optimizers=[optimizer])
    session.start()
    step()
    session.stop()
    return without_pauses(session.trace())


def _update_copies(module: nn.Module, masters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Update float32 copies from float16 gradients, and the float16 parameters from the copies."""
    for copy, parameter in zip(masters, module.parameters(), strict=True):
        if parameter.grad is not None:
            copy.grad = parameter.grad.float()
    optimizer.step()
    with torch.no_grad():
        for copy, parameter in zip(masters, module.parameters(), strict=True):
            parameter.copy_(copy)
