"""nnU-Net's published epochs.

nnU-Net (MIC-DKFZ/nnUNet, `documentation/expected_epoch_times.md` at 13b2fa9) tells the fastest of five epochs of its
U-Nets on seven GPUs, in float16 autocast under torch 1.7.1 and cuDNN 8.1: 250 training and 50 validation steps. We use
the liver data set, one of three, because its plans are public (issue 856 there: patches of 128 x 128 x 128, five
halvings, nnU-Net uses two patches per step; slices of 512 x 512, twelve of them). `volumes` had dummy input, the others
their loader, with which epochs of `volumes` take 5 to 9 % longer. The V100 of 350 W (SXM3) is predicted as the SXM2.
Nothing was fitted to these times.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step

RELEASE: Final = "1.7"
TRAINING_STEPS: Final = 250
VALIDATION_STEPS: Final = 50
CLASSES: Final = 3  # Background, liver and tumour

FIRST_WIDTH: Final = 32

GPUS: Final = (
    "A100-SXM-40GB",
    "V100-SXM2-32GB",
    "V100-PCIe-32GB",
    "Quadro-RTX-6000",
    "TITAN-RTX",
    "RTX-2080-Ti",
    "TITAN-Xp",
)


@dataclass(frozen=True)
class Plan:
    """A network of the page."""

    name: str  # Data that is divided into patches
    batch: int  # Patches of a step
    patch: tuple[int, ...]  # Sides of a patch
    halvings: int  # Times that a patch is halved
    widest: int  # Most channels
    seconds: tuple[float | None, ...]  # Measured epochs, by `GPUS`; None where it ran out of memory


PLANS: Final = (
    Plan("slices", 12, (512, 512), 7, 480, (39.71, 60.69, 69.65, 72.29, 76.17, 92.54, 183.73)),
    Plan("volumes", 2, (128, 128, 128), 5, 320, (41.1, 70.96, 80.1, 79.43, 79.43, 101.54, 289.03)),
    Plan("more volumes", 6, (128, 128, 128), 5, 320, (115.33, 213.27, 250.09, 261.54, 266.66, None, None)),
)


def _layers(dimensions: int) -> tuple[Any, Any, Any]:
    if dimensions == 2:
        return nn.Conv2d, nn.ConvTranspose2d, nn.InstanceNorm2d
    return nn.Conv3d, nn.ConvTranspose3d, nn.InstanceNorm3d


class UNet(nn.Module):
    """Two convolutions a resolution, down and up again, with an answer at each but the smallest."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.convolution, self.transposed, self.norm = _layers(len(plan.patch))
        widths = [min(FIRST_WIDTH * 2**level, plan.widest) for level in range(plan.halvings + 1)]
        self.down = nn.ModuleList(
            self._pair(inputs, outputs, stride=1 if level == 0 else 2)
            for level, (inputs, outputs) in enumerate(itertools.pairwise([1, *widths]))
        )
        steps = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.rise = nn.ModuleList(self.transposed(wide, width, 2, 2, bias=False) for wide, width in steps)
        self.up = nn.ModuleList(self._pair(2 * width, width, stride=1) for _, width in steps)
        self.answers = nn.ModuleList(self.convolution(width, CLASSES, 1, bias=False) for _, width in steps)

    def _pair(self, inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
        layers = list[nn.Module]()
        for width, step in ((inputs, stride), (outputs, 1)):
            layers += [
                self.convolution(width, outputs, 3, step, 1),
                self.norm(outputs, affine=True),
                nn.LeakyReLU(0.01, inplace=True),
            ]
        return nn.Sequential(*layers)

    def forward(self, data: Tensor) -> list[Tensor]:
        """Answers, the largest first, for patches of shape (batch, 1, *patch)."""
        kept = list[Tensor]()
        for stage in self.down:
            data = stage(data)
            kept.append(data)
        answers = list[Tensor]()
        for rise, up, answer, skip in zip(self.rise, self.up, self.answers, kept[-2::-1], strict=True):
            data = up(torch.cat((rise(data), skip), dim=1))
            answers.append(answer(data))
        return answers[::-1]


def _overlap(answer: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return true positives, false positives and false negatives, by patch and class."""
    truth = torch.zeros(answer.shape, device=answer.device).scatter_(1, label.long(), 1)
    axes = tuple(range(2, answer.dim()))
    parts = answer * truth, answer * (1 - truth), (1 - answer) * truth
    found, wrong, missed = (part.sum(dim=axes) for part in parts)
    return found, wrong, missed


def _loss(answers: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
    """Cross-entropy and Dice's loss of all answers but the smallest, each of half the weight of the one before."""
    total = torch.zeros((), device=answers[0].device)
    for level, (answer, label) in enumerate(zip(answers[:-1], labels[:-1], strict=True)):
        found, wrong, missed = _overlap(functional.softmax(answer, 1), label)
        dice = (2 * found + 1e-5) / (2 * found + wrong + missed + 1e-5)
        entropy = functional.cross_entropy(answer, label[:, 0].long())
        total = total + (entropy - dice[:, 1:].mean()) / 2**level
    return total


def _steps(plan: Plan) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return a training and a validation step."""
    with torch.device("meta"):
        network = UNet(plan)
        patches = torch.zeros(plan.batch, 1, *plan.patch)
        labels = [
            torch.zeros(plan.batch, 1, *(side // 2**level for side in plan.patch)) for level in range(plan.halvings)
        ]
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.99, weight_decay=3e-5, nesterov=True)

    def train() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = _loss(network(patches), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 12)
        optimizer.step()

    def validate() -> None:
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            answers = network(patches)
            _loss(answers, labels)
            chosen = functional.softmax(answers[0], 1).argmax(1)
            for number in range(1, CLASSES):
                found, there = chosen == number, labels[0][:, 0] == number
                for part in (found & there, found & ~there, ~found & there):
                    part.float().sum()

    return train, validate


def _recorded(plan: Plan, which: int) -> lp.Trace:
    return lp.capture(_steps(plan)[which])


def segmentation_cases(_data: Path) -> Iterator[Case]:
    """Yield an epoch of each network on each GPU."""
    for plan in PLANS:
        training, validation = (
            Step(name=f"nnunet-{plan.name}-{words}", record=partial(_recorded, plan, which))
            for which, words in enumerate(("train", "validate"))
        )
        for gpu, seconds in zip(GPUS, plan.seconds, strict=True):
            if seconds is not None:
                yield Case(
                    source=f"nnU-Net, {plan.name}",
                    model=f"nnU-Net, {plan.name} (an epoch)",
                    gpu=gpu,
                    step=training,
                    measured=seconds,
                    count=TRAINING_STEPS,
                    further=((validation, VALIDATION_STEPS),),
                    release=RELEASE,
                    includes="" if plan.name == "volumes" else "data loader",
                )
