"""Record a step on meta before and after imports: `python -m tests.soak.imports_before_recording`.

Some libraries define Tensor subclasses or patch torch. No import may change a recording. The libraries are imported in
one process, one after the other; a missing one is named. The exit code is 1 if a recording changes.
"""

import logging
import sys
import warnings
from importlib import import_module
from typing import Final

import torch
from torch import nn

import lightning_predict as lp

LIBRARIES: Final = (
    "torchvision.transforms.v2 torchvision.models.detection torchvision.datasets timm transformers "
    "transformers.trainer transformers.models.llama.modeling_llama transformers.models.bert.modeling_bert "
    "peft diffusers diffusers.models.unets.unet_2d_condition diffusers.pipelines accelerate "
    "lightning.pytorch lightning.fabric torchmetrics torchaudio sentence_transformers trl bitsandbytes "
    "datasets monai kornia einops torch_geometric open_clip pytorch_metric_learning segmentation_models_pytorch "
    "torch.distributed.tensor torch.ao.quantization "
    "torch.nested torch.func torch._dynamo"
).split()


def recording() -> tuple[object, ...]:
    """Return everything about a recorded step under autocast that an import could change."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 900, 10))
        images, labels = torch.empty(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    trace = lp.capture(step, precision="16-mixed")
    prediction = lp.predict(trace, ["T4"], history=False)["T4"]
    memory = prediction.memory.process
    operations = tuple((one.name, one.phase, one.inputs, one.outputs) for one in trace.operations)
    return operations, trace.flags, trace.notes, prediction.iteration_seconds, memory and memory.middle


def main() -> int:
    """Print what each import changes."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    before, changed = recording(), 0
    for name in LIBRARIES:
        try:
            import_module(name)
        except Exception as error:
            print(f"{name:48} not imported: {type(error).__name__}: {error}"[:140])
            continue
        is_equal = recording() == before
        changed += not is_equal
        print(f"{name:48} {'equal' if is_equal else 'CHANGED'}", flush=True)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
