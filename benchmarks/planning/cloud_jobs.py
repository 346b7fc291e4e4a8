"""Predict the jobs of the planning study on machines that clouds rent out, and write the table that the study reads.

python -m benchmarks.planning.cloud_jobs benchmarks/planning/cloud_jobs.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

import lightning_predict as lp
from benchmarks.accuracy.regressions import SWEPT_MODELS, recorded_step
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


def step_seconds(kind: str, gpus: dict[str, int]) -> dict[str, dict[str, float]]:
    """Predict one step of a job, by GPU and number of GPUs, which share the batch; each size is recorded once."""
    batch = job_batch(kind)
    counts = [count for count in (1, 2, 4, 8) if count <= batch]
    seconds: dict[str, dict[str, float]] = {gpu: {} for gpu in gpus}
    for count in counts:
        trace = recorded_step(SWEPT_MODELS[NETWORKS[kind]], batch // count)
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
