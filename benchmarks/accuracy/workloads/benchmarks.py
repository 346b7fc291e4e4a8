"""The training benchmarks of NVIDIA's DeepLearningExamples, as plain training steps on one GPU.

A step is forward, loss, backward and update. `FP32` is TF32 where the GPU has it; `FP16` and `AMP` keep parameters and
activations in float16 and update float32 copies of the parameters (apex's level O2, or by hand). The scripts clip the
norm of all gradients, and some set them to zeros instead of dropping them. Example::

    trace = benchmark_trace("resnet50", precision="AMP", batch=224)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn

import lightning_predict as lp
from benchmarks.accuracy.workloads.bert import BERT_BASE, BERT_LARGE, Bert, BertAdam, BertConfig
from benchmarks.accuracy.workloads.gnmt import GNMT, Gnmt
from benchmarks.accuracy.workloads.ncf import MOVIELENS_20M, NeuMf
from benchmarks.accuracy.workloads.recorded import tf32
from benchmarks.accuracy.workloads.resnet import ResNet50
from benchmarks.accuracy.workloads.transformer_xl import (
    TRANSFORMER_XL_BASE,
    TRANSFORMER_XL_LARGE,
    TransformerXl,
    TransformerXlConfig,
)

SQUAD_LENGTH: Final = 384
SENTENCE_LENGTH: Final = 30
"""Steps that a batch of sentences is padded to. The benchmark sorts WMT16's pairs of up to 50 tokens into five buckets
by the longer sentence; 10 to 50 steps, 30 on average."""
SENTENCE_TOKENS: Final = 23.4
"""Tokens of a sentence without padding, which alone are counted: the published logs' tokens per second times seconds
per step, over sentences."""

LossFunction = Callable[[nn.Module], Tensor]
OptimizerMaker = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A model with its batch."""

    module: nn.Module  # The model in float32, on the meta device
    loss: LossFunction  # One forward pass on the batch
    optimizer: OptimizerMaker  # Makes the optimizer
    units: int  # Images, sequences, tokens or samples of one step, as the table counts them
    clips: bool = False  # The norm of all gradients is clipped before the update
    keeps_gradients: bool = False  # In float32, gradients are set to zeros and added to; else, they are dropped


def _momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4)


def _adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


class FusedAdam(torch.optim.Optimizer):
    """Adam in one kernel, as apex has it, on any device."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient; `closure`, which others ask for the loss, is not called."""
        del closure
        for group in self.param_groups:
            parameters = [weight for weight in group["params"] if weight.grad is not None]
            for parameter in parameters:
                if not self.state[parameter]:
                    mean, square = torch.zeros_like(parameter), torch.zeros_like(parameter)
                    updates = torch.zeros((), device=parameter.device)
                    self.state[parameter] = {"mean": mean, "square": square, "steps": updates}
            means, squares, steps = (
                [self.state[parameter][name] for parameter in parameters] for name in ("mean", "square", "steps")
            )
            torch._fused_adam_(
                parameters,
                [parameter.grad for parameter in parameters],
                means,
                squares,
                [],
                steps,
                lr=group["lr"],
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )


def _resnet50(batch: int, dtype: torch.dtype) -> Benchmark:
    images = torch.zeros(batch, 3, 224, 224, dtype=dtype)
    labels = torch.zeros(batch, dtype=torch.int64)

    def loss(module: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(module(images), labels)

    return Benchmark(ResNet50(), loss, _momentum, batch, keeps_gradients=True)


def _bert_adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return BertAdam(parameters)


def _bert(config: BertConfig) -> Callable[[int, torch.dtype], Benchmark]:
    def build(batch: int, dtype: torch.dtype) -> Benchmark:
        tokens = torch.zeros(batch, SQUAD_LENGTH, dtype=torch.int64)
        places = torch.zeros(batch, dtype=torch.int64)

        def loss(module: nn.Module) -> Tensor:
            start, end = module(tokens).unbind(-1)
            return (nn.functional.cross_entropy(start, places) + nn.functional.cross_entropy(end, places)) / 2

        optimizer = _bert_adam if dtype == torch.float32 else FusedAdam
        return Benchmark(Bert(config, head="questions"), loss, optimizer, batch, clips=True, keeps_gradients=True)

    return build


def _gnmt(batch: int, _dtype: torch.dtype) -> Benchmark:
    source, target, labels = (torch.zeros(SENTENCE_LENGTH, batch, dtype=torch.int64) for _ in range(3))

    def loss(module: nn.Module) -> Tensor:
        shares = torch.log_softmax(module(source, target).flatten(0, 1), dim=-1, dtype=torch.float32)
        chosen = shares.gather(-1, labels.flatten().unsqueeze(1)).squeeze(1)
        return -(0.9 * chosen + 0.1 * shares.mean(dim=-1)).sum() / batch  # label smoothing

    units = round(2 * SENTENCE_TOKENS * batch)
    return Benchmark(Gnmt(GNMT), loss, _adam, units, clips=True, keeps_gradients=True)


def _ncf(batch: int, dtype: torch.dtype) -> Benchmark:
    users, items = torch.zeros(batch, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)
    labels = torch.zeros(batch, 1, dtype=dtype)

    def loss(module: nn.Module) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(module(users, items), labels)

    return Benchmark(NeuMf(MOVIELENS_20M), loss, FusedAdam, batch)


def _transformer_xl(config: TransformerXlConfig) -> Callable[[int, torch.dtype], Benchmark]:
    def build(batch: int, dtype: torch.dtype) -> Benchmark:
        tokens, targets = (torch.zeros(config.length, batch, dtype=torch.int64) for _ in range(2))
        memories = [torch.zeros(config.length, batch, config.hidden, dtype=dtype) for _ in range(config.layers)]

        def loss(module: nn.Module) -> Tensor:
            result: Tensor = module(tokens, targets, memories)
            return result

        return Benchmark(TransformerXl(config), loss, _adam, config.length * batch, clips=True)

    return build


BENCHMARKS: Final[Mapping[str, Callable[[int, torch.dtype], Benchmark]]] = {  # Benchmarks by the table's name
    "resnet50": _resnet50,
    "bert_base_squad": _bert(BERT_BASE),
    "bert_large_squad": _bert(BERT_LARGE),
    "gnmt": _gnmt,
    "transformerxlbase": _transformer_xl(TRANSFORMER_XL_BASE),
    "transformerxllarge": _transformer_xl(TRANSFORMER_XL_LARGE),
    "ncf": _ncf,
}

PRECISIONS: Final[Mapping[str, torch.dtype]] = {"FP32": torch.float32, "FP16": torch.float16, "AMP": torch.float16}


@cache
def units_per_sample(name: str) -> float:
    """Images, sequences, tokens or samples of one sample of a batch; `name` is a key of `BENCHMARKS`."""
    with torch.device("meta"):
        return BENCHMARKS[name](1000, torch.float32).units / 1000  # a thousand, as some are rounded


def benchmark_trace(name: str, *, precision: str, batch: int) -> lp.Trace:
    """Record one training step of a benchmark on the meta device.

    Args:
        name: A key of `BENCHMARKS`.
        precision: A key of `PRECISIONS`.
        batch: Samples of the step.
    """
    dtype = PRECISIONS[precision]
    with torch.device("meta"):
        benchmark = BENCHMARKS[name](batch, dtype)
        with tf32(products=True, tries_algorithms=True):
            return lp.capture(_step_of(benchmark, dtype), samples_per_step=batch)


def _step_of(benchmark: Benchmark, dtype: torch.dtype) -> Callable[[], None]:
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
        module.zero_grad(set_to_none=dtype == torch.float16 or not benchmark.keeps_gradients)
        benchmark.loss(module).backward()
        if dtype == torch.float16:
            _update_copies(module, masters, optimizer, clips=benchmark.clips)
            return
        if benchmark.clips:
            nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()

    return step


def _update_copies(
    module: nn.Module, masters: list[nn.Parameter], optimizer: torch.optim.Optimizer, *, clips: bool
) -> None:
    """Update float32 copies from float16 gradients, and the float16 parameters from the copies."""
    for copy, parameter in zip(masters, module.parameters(), strict=True):
        if parameter.grad is not None:
            copy.grad = parameter.grad.float()
    if clips:
        nn.utils.clip_grad_norm_(masters, 1.0)
    optimizer.step()
    with torch.no_grad():
        for copy, parameter in zip(masters, module.parameters(), strict=True):
            parameter.copy_(copy)
