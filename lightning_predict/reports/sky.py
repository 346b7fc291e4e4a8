"""SkyPilot tasks that rent the chosen machine, written without SkyPilot.

Example::

Path("task.yaml").write_text(sky_task(machine_to_rent("L4"), run="python train.py"))   # sky launch task.yaml
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import yaml

from lightning_predict.base.errors import UnknownOfferError
from lightning_predict.base.escaping import comment_line, terminal_text
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import Prediction, offer_for
from lightning_predict.hardware.layouts import Layout, in_trays, layout_of
from lightning_predict.reports.format import duration, usd, usd_per_hour

CLOUDS: Final[Mapping[str, str]] = {  # SkyPilot's cloud name (SkyPilot 0.14) by provider name in lower case
    name: name
    for name in (
        "aws azure cudo do fluidstack gcp hyperbolic ibm lambda mithril nebius oci paperspace primeintellect runpod "
        "scp seeweb shadeform vast verda yotta"
    ).split()
} | {"oracle cloud": "oci"}

ACCELERATORS: Final[Mapping[str, str]] = {
    "A100-PCIe-40GB": "A100",
    "A100-PCIe-80GB": "A100-80GB",
    "A100-SXM-40GB": "A100",
    "A100-SXM-80GB": "A100-80GB",
    "B200-SXM-180GB": "B200",
    "B300-SXM-288GB": "B300",
    "GH200-96GB": "GH200",
    "H100-NVL-94GB": "H100",
    "H100-PCIe-80GB": "H100",
    "H100-SXM-80GB": "H100",
    "H200-SXM-141GB": "H200",
    "P100-PCIe-16GB": "P100",
    "Quadro-P4000": "P4000",
    "Quadro-RTX-6000": "RTX6000",
    "RTX-6000-Ada": "RTX6000-Ada",
    "RTX-4000-Ada": "RTX4000-Ada",
    "V100-SXM2-16GB": "V100",
    "V100-SXM2-32GB": "V100-32GB",
}
"""SkyPilot's accelerator names that differ from ours by more than a missing hyphen (`RTX-4090`: `RTX4090`)."""

RUNPOD_ACCELERATORS: Final[Mapping[str, str]] = {  # RunPod's accelerator names, which distinguish form factors
    "A100-SXM-80GB": "A100-80GB-SXM",
    "H100-NVL-94GB": "H100-NVL",
    "H100-SXM-80GB": "H100-SXM",
    "H200-SXM-141GB": "H200-SXM",
}

_SAME_INSTANCE_NAMES: Final = frozenset({"aws", "gcp", "lambda"})
_GEFORCE: Final = re.compile(r"RTX-")


def machine_to_rent(gpu: str | Layout, offers: Sequence[Offer] | None = None) -> Offer:
    """Return the offer that prices a layout: the offer that the layout names, otherwise the cheapest suitable offer.

    Args:
        gpu: A layout, or any name of a layout or GPU.
        offers: Offers to choose from; None uses the offers of the package.
    """
    layout = layout_of(gpu) if isinstance(gpu, str) else gpu
    offer = offer_for(layout, offers=offers)
    if offer is None:
        raise UnknownOfferError(f"No current offer of {layout.name}; give a price file that has one.")
    return offer


def sky_task(
    offer: Offer, *, run: str = "python train.py", name: str = "training", prediction: Prediction | None = None
) -> str:
    """Write a SkyPilot task in YAML that rents the machine of an offer."""
    cloud = CLOUDS.get(offer.provider.casefold())
    machines = 1 if prediction is None else in_trays(prediction.layout).nodes
    region = offer.region.replace(" ", "").lower() if cloud == "azure" and offer.region is not None else offer.region
    return write_sky_task(
        name=name,
        run=run,
        accelerators=f"{sky_accelerator(offer.gpu, offer.provider)}:{offer.num_gpus}",
        cloud=cloud,
        region=None if cloud is None else region,
        instance_type=None if cloud is None else sky_instance(cloud, offer.instance),
        use_spot=offer.spot,
        num_nodes=None if machines == 1 else machines,
        comment=_comment(offer, cloud, prediction),
    )


def write_sky_task(
    *,
    name: str,
    run: str | None,
    accelerators: str,
    cloud: str | None = None,
    region: str | None = None,
    instance_type: str | None = None,
    use_spot: bool | None = None,
    num_nodes: int | None = None,
    file_mounts: Mapping[str, object] | None = None,
    envs: Mapping[str, str] | None = None,
    comment: Iterable[str] = (),
) -> str:
    """Return a SkyPilot task in YAML; SkyPilot chooses fields that are None.

    Without `run`, the machine starts no command. `accelerators` are SkyPilot's: `L4:1`.
    """
    resources = {
        "cloud": cloud,
        "region": region,
        "instance_type": instance_type,
        "accelerators": accelerators,
        "use_spot": use_spot,
    }
    task = {
        "name": name,
        "resources": {key: value for key, value in resources.items() if value is not None},
        **({} if num_nodes is None else {"num_nodes": num_nodes}),
        **({"file_mounts": dict(file_mounts)} if file_mounts else {}),
        **({"envs": dict(envs)} if envs else {}),
        **({} if run is None else {"run": run}),
    }
    document: str = yaml.safe_dump(task, sort_keys=False, allow_unicode=True)
    return "".join(f"{comment_line(line)}\n" for line in comment) + terminal_text(document)


def sky_accelerator(gpu: str, provider: str = "") -> str:
    """Return a GPU's name in the SkyPilot catalogue of a provider."""
    if provider.casefold() == "runpod" and gpu in RUNPOD_ACCELERATORS:
        return RUNPOD_ACCELERATORS[gpu]
    return ACCELERATORS.get(gpu, _GEFORCE.sub("RTX", gpu))


def sky_instance(cloud: str, instance: str) -> str | None:
    """Return a machine's name in SkyPilot; None if SkyPilot identifies the machine only by its GPUs."""
    if cloud in _SAME_INSTANCE_NAMES:  # excludes "n1-highmem-8 + 1x V100", a machine with an attached card
        return None if " " in instance else instance
    if cloud == "azure":
        return instance if instance.startswith("Standard_") else "Standard_" + instance.replace(" ", "_")
    return None


def _comment(offer: Offer, cloud: str | None, prediction: Prediction | None) -> list[str]:
    lines = [f"{offer.label}: {usd_per_hour(offer.usd_per_hour)} for {offer.num_gpus} x {offer.gpu}."]
    if prediction is not None and prediction.total_seconds is not None:
        cost = "" if prediction.cost_usd is None else f", {usd(prediction.cost_usd)}"
        layout = prediction.layout
        where = f"one {offer.gpu}" if layout.count == 1 else layout.name
        lines.append(f"Predicted on {where}: {duration(prediction.total_seconds)}{cost}.")
    if offer.num_gpus > (1 if prediction is None else prediction.layout.gpus_per_node):
        lines.append(f"The machine has {offer.num_gpus} GPUs, and all are paid for.")
    if cloud is None:
        lines.append(f"SkyPilot has no cloud named {offer.provider}: it will search other clouds for the GPU.")
    return lines
