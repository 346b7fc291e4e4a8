"""Models of timm and torchvision, recorded on the meta device as their published steps ran.

Both packages are the user's to install (`pip install timm torchvision`, the latter without its dependencies where there
is no CUDA). A recorded step is kept in a folder, since hundreds of them take minutes. Example::

    step = VisionStep("timm", "resnet50", mode="train", precision="amp", layout="nhwc", batch=256, image_size=224)
    trace = vision_trace(step, Path("cache"))
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, final, get_args

import torch
from torch import nn

from lightning_predict.base.errors import LightningPredictError, MissingDependencyError
from lightning_predict.record.recording import capture
from lightning_predict.record.trace import Operation, TensorInfo, Trace

Source = Literal["timm", "torchvision"]
Mode = Literal["train", "infer"]
Precision = Literal["amp", "half", "single", "double"]
Layout = Literal["nchw", "nhwc"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)

DTYPES: Final = {"amp": torch.float32, "half": torch.float16, "single": torch.float32, "double": torch.float64}
"""Of parameters and images, by precision."""

TORCHVISION_OPERATORS: Final = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
"""Operators that torchvision's Python code registers meta kernels for, even if its library was not loaded."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VisionStep:
    """What determines a recorded step.

    Attributes:
        source: Package that the model is of.
        model: Its name there.
        mode: `train`: forward, loss, backward and, of timm, an update by SGD with momentum, of torchvision, the copy of
            the images to the GPU; `infer`: forward.
        precision: `amp` is float16 autocast; the others are the dtype of parameters and images.
        layout: `nhwc` is channels last.
        batch: Images.
        image_size: Height and width.
        fuses_attention: timm calls the fused attention, as it does since torch 2.0.
    """

    source: Source
    model: str
    mode: Mode
    precision: Precision
    layout: Layout
    batch: int
    image_size: int
    fuses_attention: bool = True

    @property
    def updates(self) -> bool:
        """True where the step ends with an update."""
        return self.mode == "train" and self.source == "timm"

    @property
    def file_name(self) -> str:
        """Name of the file that keeps its trace."""
        attention = "" if self.fuses_attention else "-eager"
        words = (self.source, self.model, self.mode, self.precision, self.layout, str(self.batch), str(self.image_size))
        return "-".join(words) + f"{attention}.json.gz"


def vision_trace(step: VisionStep, cache: Path | None = None) -> Trace | None:
    """Record a step, or read it where it was recorded before; None if the installed release cannot run it.

    Args:
        step: The step.
        cache: Folder that keeps traces; None keeps none. Empty it when the recordings change.

    Raises:
        MissingDependencyError: timm or torchvision is not installed.
    """
    if cache is None:
        return _recorded(step)
    path = cache / step.file_name
    failed = path.with_suffix(".failed")
    if path.is_file():
        return Trace.load(str(path))
    if failed.is_file():
        return None
    trace = _recorded(step)
    cache.mkdir(parents=True, exist_ok=True)
    if trace is None:
        failed.touch()
    else:
        trace.save(str(path))
    return trace


def _recorded(step: VisionStep) -> Trace | None:
    build = _builder(step)
    dtype = DTYPES[step.precision]
    layout = torch.channels_last if step.layout == "nhwc" else torch.contiguous_format
    try:
        with torch.device("meta"):
            module = build(step.model).to(dtype=dtype).train(step.mode == "train")
            module.to(memory_format=layout)  # type: ignore[call-overload]
            images = torch.empty(step.batch, 3, step.image_size, step.image_size, dtype=dtype)
            labels = torch.empty(step.batch, dtype=torch.int64)
        images = images.to(memory_format=layout)
        run = _training(step, module, images, labels) if step.mode == "train" else _inference(module, images)
        trace = capture(
            run,
            warmup_steps=1 if step.updates else 0,  # the first update makes the momentum
            precision="16-mixed" if step.precision == "amp" else None,
            samples_per_step=step.batch,
        )
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError, LightningPredictError):
        return None  # a model that this release no longer has, or that asks for numbers which meta tensors lack
    copies = step.source == "torchvision" and step.mode == "train"
    return _with_copied_images(trace, images) if copies else trace


def _training(step: VisionStep, module: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        output: Any = module(images)
        output = output[0] if isinstance(output, list | tuple) else output
        nn.functional.cross_entropy(output, labels).backward()
        if step.updates:
            optimizer.step()

    return run


def _inference(module: nn.Module, images: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            module(images)

    return run


def _with_copied_images(trace: Trace, images: torch.Tensor) -> Trace:
    """The step with the copy of its images to the GPU, which is within the published times."""
    name = str(images.dtype).removeprefix("torch.")
    source, target = (TensorInfo(tuple(images.shape), name, device=device) for device in ("cpu", "cuda"))
    copy = Operation(name="aten::_to_copy", phase="other", inputs=(source,), outputs=(target,))
    return replace(trace, operations=(copy, *trace.operations))


def import_torchvision() -> None:
    """Import torchvision; define its operators first if its own library of them does not load with this torch.

    Raises:
        ImportError: torchvision is not installed.
    """
    try:
        import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name, schema in TORCHVISION_OPERATORS.items():
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(f"torchvision::{name}", schema)
        import_module("torchvision")


def _builder(step: VisionStep) -> Callable[[str], nn.Module]:
    try:
        import_torchvision()
        package = import_module(step.source)
        if step.source == "timm":
            import_module("timm.layers").set_fused_attn(step.fuses_attention)
    except ImportError as error:
        raise MissingDependencyError(
            f"These steps are recorded from {step.source}, which is not installed: pip install {step.source}"
        ) from error

    def build(name: str) -> nn.Module:
        module: nn.Module = (
            package.create_model(name) if step.source == "timm" else package.models.get_model(name, weights=None)
        )
        return module

    return build
