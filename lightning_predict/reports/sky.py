"""Write tasks for SkyPilot that rent the chosen machine, and tell its optimizer the predicted times.

SkyPilot assumes one hour where nobody tells it a time. Nothing here imports it. Example::

    Path("task.yaml").write_text(sky_task(machine_to_rent("L4"), run="python train.py"))   # sky launch task.yaml

    task = sky.Task.from_yaml("task.yaml")
    task.set_time_estimator(sky_time_estimator(result))
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import yaml

from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import Prediction, offer_for
from lightning_predict.errors import InvalidArgumentError, UnknownGpuError, UnknownOfferError
from lightning_predict.gpus import Gpu
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.gpus.layouts import Layout, in_trays, layout_of
from lightning_predict.reports.format import duration, usd, usd_per_hour
from lightning_predict.reports.predictions import Predictions

CLOUDS: Final[Mapping[str, str]] = {
    "aws": "aws",
    "azure": "azure",
    "cudo": "cudo",
    "do": "do",
    "fluidstack": "fluidstack",
    "gcp": "gcp",
    "hyperbolic": "hyperbolic",
    "ibm": "ibm",
    "lambda": "lambda",
    "mithril": "mithril",
    "nebius": "nebius",
    "oci": "oci",
    "oracle cloud": "oci",
    "paperspace": "paperspace",
    "primeintellect": "primeintellect",
    "runpod": "runpod",
    "scp": "scp",
    "seeweb": "seeweb",
    "shadeform": "shadeform",
    "vast": "vast",
    "verda": "verda",
    "yotta": "yotta",
}
"""SkyPilot's name of a provider's cloud, by the provider in lower case (the clouds of SkyPilot 0.14)."""

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
"""SkyPilot's name of an accelerator where it is neither ours nor ours without hyphens (`RTX-4090`: `RTX4090`)."""

RUNPOD_ACCELERATORS: Final[Mapping[str, str]] = {
    "A100-SXM-80GB": "A100-80GB-SXM",
    "H100-NVL-94GB": "H100-NVL",
    "H100-SXM-80GB": "H100-SXM",
    "H200-SXM-141GB": "H200-SXM",
}
"""RunPod's catalogue tells the forms of a card apart."""

_CATALOGUE: Final = "SkyPilot catalogue"
_SAME_INSTANCE_NAMES: Final = frozenset({"aws", "gcp", "lambda"})
_GEFORCE: Final = re.compile(r"RTX-")


def machine_to_rent(gpu: str | Layout, offers: Sequence[Offer] | None = None) -> Offer:
    """Choose the machine that a layout is priced by: the one it names, else the cheapest with enough of its GPU.

    Args:
        gpu: A layout, or any name of one or of a GPU.
        offers: Offers to choose from; None takes those that ship with the package.

    Raises:
        UnknownGpuError: The catalogue does not hold the GPU.
        UnknownOfferError: No current offer has it.
    """
    layout = layout_of(gpu) if isinstance(gpu, str) else gpu
    found = offer_for(layout, offers=offers)
    if found is None:
        raise UnknownOfferError(f"No current offer of {layout.name}; give a price file that has one.")
    return found


def sky_task(
    offer: Offer, *, run: str = "python train.py", name: str = "training", prediction: Prediction | None = None
) -> str:
    """Write a SkyPilot task in YAML that rents the machine of an offer.

    Args:
        offer: The machine. One that SkyPilot has no cloud for is described by its GPU alone.
        run: Command that trains.
        name: Name of the task.
        prediction: What it takes, for the comment at the top.
    """
    cloud = CLOUDS.get(offer.provider.casefold())
    machines = 1 if prediction is None else in_trays(prediction.layout).nodes
    return write_sky_task(
        name=name,
        run=run,
        accelerators=f"{sky_accelerator(offer.gpu, offer.provider)}:{offer.num_gpus}",
        cloud=cloud,
        region=None if cloud is None or offer.region is None else _region(cloud, offer.region),
        instance_type=None if cloud is None else _instance(cloud, offer),
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
    """Write a SkyPilot task in YAML; a field that is None is left out, so that SkyPilot chooses.

    Args:
        name: Name of the task.
        run: Command that trains; None rents the machine and starts nothing.
        accelerators: SkyPilot's name of the GPU, and how many: `L4:1`.
        cloud: SkyPilot's name of the cloud.
        region: The cloud's name of the region.
        instance_type: The cloud's name of the machine.
        use_spot: Rent an interruptible machine.
        num_nodes: Machines.
        file_mounts: What is mounted where, by folder on the machine.
        envs: Environment of the command.
        comment: Lines at the top.
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
    return "".join(f"# {line}\n" for line in comment) + document


def sky_accelerator(gpu: str, provider: str = "") -> str:
    """Spell the name of a GPU as SkyPilot's catalogue of a provider does."""
    if provider.casefold() == "runpod" and gpu in RUNPOD_ACCELERATORS:
        return RUNPOD_ACCELERATORS[gpu]
    return ACCELERATORS.get(gpu, _GEFORCE.sub("RTX", gpu))


def sky_time_estimator(predictions: Predictions) -> Callable[[Any], int]:
    """Make the function for SkyPilot's `Task.set_time_estimator`: from a `sky.Resources` to seconds.

    Args:
        predictions: Predictions of a run whose length is known.

    Returns:
        A function that raises UnknownGpuError for resources that were not predicted, and InvalidArgumentError for
        those without an accelerator, on which the run does not fit, or where its length is unknown.
    """

    def seconds(resources: Any) -> int:
        accelerators: Mapping[str, float] = resources.accelerators or {}
        if len(accelerators) != 1:
            raise InvalidArgumentError(f"{resources} has no accelerator of one kind; ask for one, for example T4:1.")
        ((name, count),) = accelerators.items()
        found = _predicted(predictions, name, count)
        if found.fits is False:
            raise InvalidArgumentError(
                f"The run does not fit on {found.gpu}; leave {name} out of the task's resources."
            )
        if found.total_seconds is None:
            raise InvalidArgumentError(
                f"The length of the run on {found.gpu} is not known; predict it with a number of iterations."
            )
        return math.ceil(found.total_seconds)

    return seconds


def _predicted(predictions: Predictions, name: str, count: float) -> Prediction:
    for one in predictions.values():
        layout = one.layout
        names = (layout.gpu.name, sky_accelerator(layout.gpu.name), sky_accelerator(layout.gpu.name, "runpod"))
        if layout.nodes == 1 and layout.gpus_per_node == count and (name in names or _is_called(layout.gpu, name)):
            return one
    asked = ", ".join(predictions)
    raise UnknownGpuError(f"{name}:{count:g} was not predicted. Predicted: {asked}.")


def _is_called(gpu: Gpu, name: str) -> bool:
    try:
        return find_gpu(name) == gpu
    except UnknownGpuError:
        return False


def _instance(cloud: str, offer: Offer) -> str | None:
    """Give SkyPilot's name of the machine; None if the price list does not use that."""
    if offer.source.startswith(_CATALOGUE):
        return offer.instance
    return sky_instance(cloud, offer.instance)


def sky_instance(cloud: str, instance: str) -> str | None:
    """Spell the name of a machine as SkyPilot does; None if it is known by its GPUs alone."""
    if cloud in _SAME_INSTANCE_NAMES:  # but not "n1-highmem-8 + 1x V100", a machine with a card attached
        return None if " " in instance else instance
    if cloud == "azure":
        return instance if instance.startswith("Standard_") else "Standard_" + instance.replace(" ", "_")
    return None


def _region(cloud: str, region: str) -> str:
    return region.replace(" ", "").lower() if cloud == "azure" else region


def _comment(offer: Offer, cloud: str | None, prediction: Prediction | None) -> list[str]:
    lines = [f"{offer.label}: {usd_per_hour(offer.usd_per_hour)} for {offer.num_gpus} x {offer.gpu}."]
    if prediction is not None and prediction.total_seconds is not None:
        cost = "" if prediction.cost_usd is None else f", {usd(prediction.cost_usd)}"
        layout = prediction.layout
        where = f"one {offer.gpu}" if layout.count == 1 else layout.name
        lines.append(f"Predicted on {where}: {duration(prediction.total_seconds)}{cost}.")
    if offer.num_gpus > (1 if prediction is None else prediction.layout.gpus_per_node):
        lines.append(f"The machine has {offer.num_gpus} GPUs, all of which are paid for.")
    if cloud is None:
        lines.append(f"SkyPilot has no cloud named {offer.provider}: it will look for the GPU elsewhere.")
    return lines
