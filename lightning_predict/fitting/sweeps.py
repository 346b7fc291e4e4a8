"""Sweeps of runs over batch size, number of GPUs, computing power and depth, for regressions to be tried on.

A sweep is simulated: each step is recorded on the meta device and predicted by this package, on one GPU and on several.
So its times are as smooth, and as wrong, as the predictions; what it shows is how far linear regressions reach, not how
long training takes. Example::

    runs = simulated_sweep("AlexNet", batch_sizes=(16, 32, 64), gpus=("T4", "2xT4"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import torch
from torch import Tensor, nn

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.fitting.workloads.classifiers import VGG19, alexnet, googlenet, vgg
from lightning_predict.fitting.workloads.deep_speech import DeepSpeech
from lightning_predict.fitting.workloads.resnet import ResNet50
from lightning_predict.gpus.layouts import layout_of
from lightning_predict.prediction import predict
from lightning_predict.regression.runs import PastRun, RunSetting
from lightning_predict.tracing.records import Flags, Trace
from lightning_predict.tracing.session import CaptureSession

ITERATIONS: Final = 1000
"""Of every simulated run; a run has no start-up, so they do not matter."""

Batch = tuple[Tensor, Tensor]


@final
@dataclass(frozen=True, slots=True)
class SweptModel:
    """A network and its batches.

    Attributes:
        network: Makes it, on the current device.
        batch: Data and labels of so many samples.
    """

    network: Callable[[], nn.Module]
    batch: Callable[[int], Batch]


def _images(samples: int) -> Batch:
    return torch.empty(samples, 3, 224, 224), torch.zeros(samples, dtype=torch.int64)


def _speech(samples: int) -> Batch:
    """One second of sound each: 100 spectra, a letter for every second one."""
    return torch.empty(samples, 1, 161, 100), torch.zeros(samples, 50, dtype=torch.int64)


def resnet_of(inner_modules: int) -> nn.Module:
    """A ResNet with so many bottlenecks in each of its four stages."""
    return ResNet50((inner_modules,) * 4)


SWEPT_MODELS: Final[Mapping[str, SweptModel]] = {
    "AlexNet": SweptModel(alexnet, _images),
    "ResNet-50": SweptModel(ResNet50, _images),
    "VGG-19": SweptModel(lambda: vgg(VGG19), _images),
    "DeepSpeech": SweptModel(lambda: DeepSpeech(channels=32, hidden=800, layers=5), _speech),
    "GoogLeNet": SweptModel(googlenet, _images),
}
"""Models by name."""


def recorded_step(model: SweptModel, samples: int) -> Trace:
    """One training step in float32, without TF32, on the meta device.

    Args:
        model: The network and its batches.
        samples: Of the batch.
    """
    with torch.device("meta"):
        network, (data, labels) = model.network(), model.batch(samples)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    session = CaptureSession(device=data.device, model=network, optimizers=[optimizer])
    for is_recorded in (False, True):  # the first step makes the momentum
        if is_recorded:
            session.start()
        optimizer.zero_grad()
        logits = network(data)
        nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)).backward()
        optimizer.step()
        if is_recorded:
            session.stop()
    return replace(session.trace(), flags=Flags(matmul_tf32=False, cudnn_tf32=False), samples=samples)


def runs_from(
    name: str, steps: Mapping[int, Trace], gpus: Sequence[str], *, inner_modules: int | None = None
) -> list[PastRun]:
    """Recorded steps, predicted as runs.

    Args:
        name: Of the model.
        steps: By samples of a GPU.
        gpus: GPUs and layouts, for example `T4` and `4xT4`.
        inner_modules: How deep the model is, where that varies.
    """
    runs = []
    for samples, trace in steps.items():
        predictions = predict(trace, gpus, history=False)
        for entry in gpus:
            layout = layout_of(entry)
            setting = RunSetting(
                iterations=ITERATIONS,
                batch_size=samples,
                gpu=layout.gpu.name,
                num_gpus=layout.count,
                inner_modules=inner_modules,
            )
            seconds = predictions[layout.name].iteration_seconds * ITERATIONS
            runs.append(PastRun(model=name, setting=setting, seconds=seconds))
    return runs


def simulated_sweep(name: str, *, batch_sizes: Iterable[int], gpus: Sequence[str]) -> list[PastRun]:
    """Runs of a model at all batch sizes on all GPUs and layouts.

    Args:
        name: A key of `SWEPT_MODELS`.
        batch_sizes: Samples of one GPU.
        gpus: GPUs and layouts.

    Raises:
        InvalidArgumentError: Another model.
        UnknownGpuError: A GPU that the catalogue does not hold.
    """
    model = SWEPT_MODELS.get(name)
    if model is None:
        raise InvalidArgumentError(f"{name!r} has no sweep; choose one of {', '.join(SWEPT_MODELS)}.")
    return runs_from(name, {size: recorded_step(model, size) for size in batch_sizes}, gpus)


def depth_sweep(*, inner_modules: Iterable[int], batch_sizes: Sequence[int], gpus: Sequence[str]) -> list[PastRun]:
    """Runs of ResNets of several depths.

    Args:
        inner_modules: Bottlenecks of each stage.
        batch_sizes: Samples of one GPU.
        gpus: GPUs and layouts.

    Raises:
        UnknownGpuError: A GPU that the catalogue does not hold.
    """
    runs = []
    for count in inner_modules:
        model = SweptModel(lambda depth=count: resnet_of(depth), _images)  # type: ignore[misc]
        steps = {size: recorded_step(model, size) for size in batch_sizes}
        runs += runs_from("ResNet", steps, gpus, inner_modules=count)
    return runs
