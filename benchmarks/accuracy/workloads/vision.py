"""Models of timm and torchvision, recorded on the meta device as their published steps ran.

Both packages are the user's to install (`pip install timm torchvision`, the latter without its dependencies where there
is no CUDA). Example::

    step = VisionStep("timm", "resnet50", mode="train", precision="amp", layout="nhwc", batch=256, image_size=224)
    trace = vision_trace(step)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Literal, get_args

import torch
from torch import nn

import lightning_predict as lp
from benchmarks.accuracy.workloads.recorded import tf32

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


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionStep:
    """What determines a recorded step."""

    source: Source  # Package that the model is of
    model: str  # Its name there
    mode: Mode  # `train`: forward, loss, backward and, of timm, an update by SGD with momentum; `infer`: forward
    precision: Precision  # `amp` is float16 autocast; the others are the dtype of parameters and images
    layout: Layout  # `nhwc` is channels last
    batch: int  # Images
    image_size: int  # Height and width
    fuses_attention: bool = True  # timm calls the fused attention, as it does since torch 2.0
    tries_tf32: bool = False  # Matrix products in float32 run as TF32

    @property
    def updates(self) -> bool:
        """True where the step ends with an update."""
        return self.mode == "train" and self.source == "timm"

    @property
    def name(self) -> str:
        """Words that identify the step."""
        attention = "" if self.fuses_attention else "-eager"
        words = (self.source, self.model, self.mode, self.precision, self.layout, str(self.batch), str(self.image_size))
        return "-".join(words) + attention + ("-tf32" if self.tries_tf32 else "")


def vision_trace(step: VisionStep) -> lp.Trace:
    """Record a step.

    Raises:
        ImportError: timm or torchvision is not installed.
        RuntimeError: The installed release no longer has the model; also other errors of its code.
    """
    build = _builder(step)
    dtype = DTYPES[step.precision]
    layout = torch.channels_last if step.layout == "nhwc" else torch.contiguous_format
    with torch.device("meta"):
        module = build(step.model).to(dtype=dtype).train(step.mode == "train")
        module.to(memory_format=layout)  # type: ignore[call-overload]
        images = torch.empty(step.batch, 3, step.image_size, step.image_size, dtype=dtype)
        labels = torch.empty(step.batch, dtype=torch.int64)
    images = images.to(memory_format=layout)
    run = _training(step, module, images, labels) if step.mode == "train" else _inference(module, images)
    precision = "16-mixed" if step.precision == "amp" else None
    with tf32(products=step.tries_tf32, tries_algorithms=True):
        return lp.capture(run, precision=precision, samples_per_step=step.batch)


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


def import_torchvision() -> None:
    """Import torchvision if it is installed, without its library if this does not load with this torch.

    transformers imports torchvision, too, and would fail.
    """
    if find_spec("torchvision") is None:
        return
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
    import_torchvision()
    package = import_module(step.source)
    if step.source == "timm":
        import_module("timm.layers").set_fused_attn(step.fuses_attention)

    def build(name: str) -> nn.Module:
        module: nn.Module = (
            package.create_model(name) if step.source == "timm" else package.models.get_model(name, weights=None)
        )
        return module

    return build
