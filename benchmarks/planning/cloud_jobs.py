"""Predict the jobs of the planning study on machines that clouds rent out, and write the table that the study reads.

python -m benchmarks.planning.cloud_jobs benchmarks/planning/cloud_jobs.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

import lightning_predict as lp
from benchmarks.accuracy.workloads.classifiers import VGG19, alexnet, vgg
from benchmarks.accuracy.workloads.deep_speech import DeepSpeech
from benchmarks.accuracy.workloads.recorded import tf32
from benchmarks.accuracy.workloads.resnet import ResNet50
from benchmarks.planning.study import job_batch, study_job_kinds
from lightning_predict.cost.offers import Offer, load_offers

MACHINES: Final = (
    ("AWS", "g5.xlarge"),
    ("AWS", "g5.12xlarge"),
    ("AWS", "g6e.12xlarge"),
    ("AWS", "p3.2xlarge"),
    ("AWS", "p4d.24xlarge"),
    ("Azure", "NC4as T4 v3"),
    ("Azure", "NC64as T4 v3"),
    ("GCP", "g2-standard-4"),
    ("GCP", "g2-standard-48"),
    ("GCP", "a2-highgpu-1g"),
)
"""Current machines of three clouds with one to eight GPUs that float32 jobs of some minutes are run on."""

NETWORKS: Final = {
    "JJ1": "DeepSpeech",
    "JJ2": "VGG-19",
    "JJ3": "VGG-19",
    "JJ4": "AlexNet",
    "JJ5": "ResNet-50",
    "JJ6": "ResNet-50",
}


def newest_offer(provider: str, instance: str) -> Offer:
    """Return the newest price of a machine."""
    offers = [offer for offer in load_offers() if (offer.provider, offer.instance) == (provider, instance)]
    return max(offers, key=lambda offer: offer.date)


Batch = tuple[Tensor, Tensor]


def _images(samples: int) -> Batch:
    return torch.empty(samples, 3, 224, 224), torch.zeros(samples, dtype=torch.int64)


def _speech(samples: int) -> Batch:
    """One second of sound each: 100 spectra, a letter for every second one."""
    return torch.empty(samples, 1, 161, 100), torch.zeros(samples, 50, dtype=torch.int64)


MODELS: Final[Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], Batch]]]] = {  # Networks with their batches
    "AlexNet": (alexnet, _images),
    "ResNet-50": (ResNet50, _images),
    "VGG-19": (lambda: vgg(VGG19), _images),
    "DeepSpeech": (lambda: DeepSpeech(channels=32, hidden=800, layers=5), _speech),
}


def recorded_step(name: str, samples: int) -> lp.Trace:
    """Record one training step in float32, without TF32, on the meta device."""
    make, batch = MODELS[name]
    with torch.device("meta"):
        network, (data, labels) = make(), batch(samples)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        logits = network(data)
        nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)).backward()
        optimizer.step()

    with tf32(products=False, convolutions=False):
        return lp.capture(step, samples_per_step=samples)


def step_seconds(kind: str, gpus: dict[str, int]) -> dict[str, dict[str, float]]:
    """Predict one step of a job, by GPU and number of GPUs, which share the batch; each size is recorded once."""
    batch = job_batch(kind)
    counts = [count for count in (1, 2, 4, 8) if count <= batch]
    seconds: dict[str, dict[str, float]] = {gpu: {} for gpu in gpus}
    for count in counts:
        trace = recorded_step(NETWORKS[kind], batch // count)
        layouts = {gpu: gpu if count == 1 else f"{count}x{gpu}" for gpu, most in gpus.items() if count <= most}
        predictions = lp.predict(trace, gpus=list(layouts.values()), history=False)
        for gpu, layout in layouts.items():
            if predictions[layout].fits is not False:
                seconds[gpu][str(count)] = float(f"{predictions[layout].iteration_seconds:.4g}")
    return seconds


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    offers = [newest_offer(*machine) for machine in MACHINES]
    gpus = {offer.gpu: max(o.num_gpus for o in offers if o.gpu == offer.gpu) for offer in offers}
    document = {
        "command": "python -m benchmarks.planning.cloud_jobs benchmarks/planning/cloud_jobs.json",
        "version": lp.__version__,
        "machines": {
            f"{offer.provider} {offer.instance}": {
                "gpu": offer.gpu,
                "num_gpus": offer.num_gpus,
                "usd_per_hour": offer.usd_per_hour,
                **({} if offer.spot_usd_per_hour is None else {"spot_usd_per_hour": offer.spot_usd_per_hour}),
                "date": offer.date,
            }
            for offer in offers
        },
        "step_seconds": {kind: step_seconds(kind, gpus) for kind in study_job_kinds()},
    }
    output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
