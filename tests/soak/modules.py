"""Train modules of other projects with our callbacks and without: `python -m tests.soak.modules`.

Each is fitted twice from the same seeds; printed is what differs. A project that is not installed, or that cannot be
imported with this torch, is named with the reason. `make soak-modules` installs the projects of `requirements.txt`.
"""

import argparse
import logging
import tempfile
import warnings
from collections.abc import Callable
from importlib import import_module as load
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.accuracy.workloads.vision import TORCHVISION_OPERATORS

for _name, _schema in TORCHVISION_OPERATORS.items():  # torchvision's library is made for CUDA and loads nowhere else
    if not hasattr(torch.ops.torchvision, _name):
        torch.library.define(f"torchvision::{_name}", _schema)

from tests.callbacks import features  # noqa: E402  (imports torchvision where it is installed)
from tests.callbacks.features import LIGHTNING, callbacks, differences, outcome  # noqa: E402

BATCHES: Final = 6

Loss = Callable[[Any, Tensor], Tensor]
Made = tuple[nn.Module, Loss]
MODULES: Final[dict[str, Callable[[], Made]]] = {}


def module(name: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Register a function that makes a module and its loss for rows of eight numbers."""

    def register(make: Callable[[], Made]) -> Callable[[], Made]:
        MODULES[name] = make
        return make

    return register


def images_of(batch: Tensor, side: int = 64) -> Tensor:
    """Make images of rows."""
    return nn.functional.interpolate(batch.view(len(batch), 1, 2, 4).expand(-1, 3, -1, -1), size=(side, side))


def tokens_of(batch: Tensor) -> Tensor:
    """Make words of a vocabulary of 64 of rows."""
    return (batch.abs() * 8).long().clamp(max=63)


def squares(inputs: Callable[[Tensor], Tensor] = lambda batch: batch) -> Loss:
    """Return a loss: the squares of a module's outputs."""
    return lambda model, batch: model(inputs(batch)).square().mean()


def next_word(model: Any, batch: Tensor) -> Tensor:
    """Predict each word from those before it."""
    tokens = tokens_of(batch)
    return nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


# Adapters, and layers that draw or select at random.


@module("transformers with PEFT")
def _() -> Made:
    transformers, peft = load("transformers"), load("peft")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16)
    lora = peft.LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1)
    model = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)
    return model, lambda model, batch: model(input_ids=tokens_of(batch), labels=tokens_of(batch)).loss


@module("torch-geometric")
def _() -> Made:
    layers = load("torch_geometric.nn")
    first, second = layers.GCNConv(8, 16), layers.GATConv(16, 2, dropout=0.2)
    model = layers.Sequential("x, edges", [(first, "x, edges -> x"), nn.ReLU(), (second, "x, edges -> x")])
    return model, lambda model, batch: model(batch, torch.randint(len(batch), (2, 12))).square().mean()


@module("lightly")
def _() -> Made:
    head = load("lightly.models.modules.heads").SimCLRProjectionHead(16, 16, 8)
    criterion = load("lightly.loss").NTXentLoss()

    def loss(model: Any, batch: Tensor) -> Tensor:
        return criterion(*(model(batch + 0.1 * torch.randn_like(batch)) for _ in range(2)))  # type: ignore[no-any-return]

    return nn.Sequential(nn.Linear(8, 16), head), loss


@module("Torch Uncertainty")
def _() -> Made:
    layers = load("torch_uncertainty.layers.bayesian")
    return nn.Sequential(layers.BayesLinear(8, 16), nn.ReLU(), layers.BayesLinear(16, 2)), squares()


@module("Kornia")
def _() -> Made:
    kornia = load("kornia.augmentation")
    augment = kornia.AugmentationSequential(
        kornia.RandomAffine(15.0, p=0.5), kornia.RandomHorizontalFlip(p=0.5), data_keys=["input"]
    )
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return model, squares(lambda batch: augment(images_of(batch)))


@module("timm")
def _() -> Made:
    model = load("timm").create_model("convnext_atto", pretrained=False, num_classes=4, drop_path_rate=0.3)
    return model, squares(images_of)


@module("Performer")
def _() -> Made:
    attention = load("performer_pytorch").SelfAttention(dim=8, heads=2, dim_head=4, dropout=0.1)
    return attention, squares(lambda batch: batch.unsqueeze(1).expand(-1, 6, -1).cumsum(1))


# Losses and tensors of their own.


@module("segmentation-models-pytorch")
def _() -> Made:
    segmentation = load("segmentation_models_pytorch")
    criterion = segmentation.losses.DiceLoss("multiclass")

    def loss(model: Any, batch: Tensor) -> Tensor:
        images = images_of(batch)
        return criterion(model(images), (images[:, 0] > 0).long())  # type: ignore[no-any-return]

    return segmentation.Unet("resnet18", encoder_weights=None, classes=2), loss


@module("MONAI")
def _() -> Made:
    model = load("monai.networks.nets").UNet(
        2, in_channels=3, out_channels=2, channels=(8, 16), strides=(2,), dropout=0.1
    )
    criterion = load("monai.losses").DiceCELoss(to_onehot_y=True, softmax=True)

    def loss(model: Any, batch: Tensor) -> Tensor:
        images = images_of(batch)
        return criterion(model(images), (images[:, :1] > 0).long())  # type: ignore[no-any-return]

    return model, loss


@module("PINA")
def _() -> Made:
    label = load("pina").LabelTensor  # a class of tensors with labels
    model = load("pina.model").FeedForward(input_dimensions=2, output_dimensions=1, inner_size=16)
    return model, lambda model, batch: model(label(batch[:, :2], ["x", "y"])).as_subclass(Tensor).square().mean()


@module("PyTorch Metric Learning")
def _() -> Made:
    criterion = load("pytorch_metric_learning.losses").TripletMarginLoss()
    miner = load("pytorch_metric_learning.miners").MultiSimilarityMiner()

    def loss(model: Any, batch: Tensor) -> Tensor:
        vectors, labels = model(batch), torch.arange(len(batch)) % 2
        return criterion(vectors, labels, miner(vectors, labels)) + vectors.square().mean()  # type: ignore[no-any-return]

    return nn.Linear(8, 4), loss


@module("entmax")
def _() -> Made:
    entmax = load("entmax").Entmax15Loss()  # a function of autograd's of its own
    return nn.Linear(8, 4), lambda model, batch: entmax(model(batch), torch.arange(len(batch)) % 4).mean()


@module("neuraloperator")
def _() -> Made:
    model = load("neuralop.models").FNO(n_modes=(4, 4), in_channels=3, out_channels=1, hidden_channels=8)
    return model, squares(lambda batch: images_of(batch, 16))  # computes in complex numbers


# Language and images.


@module("LitGPT")
def _() -> Made:
    parts = load("litgpt")
    sizes = {"block_size": 16, "vocab_size": 64, "padded_vocab_size": 64, "n_embd": 32}
    return parts.GPT(parts.Config(**sizes, n_layer=2, n_head=4, n_query_groups=2)), next_word


@module("x-transformers")
def _() -> Made:
    parts = load("x_transformers")
    layers = parts.Decoder(dim=32, depth=2, heads=2, attn_dropout=0.1, ff_dropout=0.1)
    return parts.TransformerWrapper(num_tokens=64, max_seq_len=16, attn_layers=layers), next_word


@module("OpenCLIP")
def _() -> Made:
    model = load("open_clip.model").CLIP(
        embed_dim=16,
        vision_cfg={"image_size": 64, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
        text_cfg={"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1},
    )

    def loss(model: Any, batch: Tensor) -> Tensor:
        images, words, scale = model(images_of(batch), tokens_of(batch))[:3]
        return nn.functional.cross_entropy(scale * images @ words.T, torch.arange(len(batch)))

    return model, loss


@module("denoising-diffusion-pytorch")
def _() -> Made:
    parts = load("denoising_diffusion_pytorch")
    model = parts.GaussianDiffusion(parts.Unet(dim=8, dim_mults=(1, 2), flash_attn=False), image_size=16, timesteps=20)
    return model, lambda model, batch: model(images_of(batch, 16).sigmoid())


@module("vector-quantize-pytorch")
def _() -> Made:
    quantize = load("vector_quantize_pytorch").VectorQuantize(dim=8, codebook_size=16)  # a moving average

    def loss(model: Any, batch: Tensor) -> Tensor:
        vectors, _, commitment = model[1](model[0](batch).unsqueeze(0))
        return vectors.square().mean() + commitment.sum()  # type: ignore[no-any-return]

    return nn.ModuleList([nn.Linear(8, 8), quantize]), loss


# Equations, flows, processes and spikes.


class Equation(nn.Module):
    """A differential equation, with noise for a solver that draws it."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.drift, self.spread = nn.Linear(8, 8), nn.Linear(8, 8)

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        """Return the drift."""
        return self.drift(y)  # type: ignore[no-any-return]

    forward = f

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        """Return the diffusion."""
        return self.spread(y).sigmoid()  # type: ignore[no-any-return]


@module("torchsde")
def _() -> Made:
    solve = load("torchsde").sdeint
    return Equation(), lambda model, batch: solve(model, batch, torch.linspace(0, 1, 3), dt=0.25).square().mean()


@module("torchdiffeq")
def _() -> Made:
    solve = load("torchdiffeq").odeint_adjoint  # back in time for the gradients
    times = torch.linspace(0, 1, 3)
    return Equation(), lambda model, batch: solve(model, batch, times, method="rk4").square().mean()


@module("GPyTorch")
def _() -> Made:
    gpytorch: Any = load("gpytorch")

    class Process(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            distribution = gpytorch.variational.CholeskyVariationalDistribution(4)
            super().__init__(gpytorch.variational.VariationalStrategy(self, torch.randn(4, 8), distribution))
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    def loss(model: Any, batch: Tensor) -> Tensor:
        bound = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=24)
        return -bound(model(batch), batch.sum(-1))  # type: ignore[no-any-return]

    return Process(), loss


@module("e3nn")
def _() -> Made:
    return load("e3nn.o3").Linear("2x0e+2x1o", "4x0e+2x1o"), squares()  # its code is scripted as it is built


@module("Zuko")
def _() -> Made:
    flow = load("zuko").flows.NSF(features=8, transforms=2, hidden_features=(16,))
    return flow, lambda model, batch: -model().log_prob(batch).mean()


@module("snnTorch")
def _() -> Made:
    neuron = load("snntorch").Leaky(beta=0.9, learn_beta=True)  # a surrogate for the gradients of spikes

    def loss(model: Any, batch: Tensor) -> Tensor:
        state, total = model[1].reset_mem(), torch.zeros(())
        for _ in range(6):
            spikes, state = model[1](model[0](batch), state)
            total = total + spikes.mean() + state.square().mean()
        return total

    return nn.ModuleList([nn.Linear(8, 16), neuron]), loss


def fitted(make: Callable[[], Made]) -> features.Fit:
    """Return a fit of a module of others."""

    class Module(LIGHTNING.lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.module, self.loss = make()
            self.batches_trained = 0

        def training_step(self, batch: Tensor) -> Tensor:
            self.batches_trained += 1
            return self.loss(self.module, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    def fit(folder: Path, ours: list[Any]) -> tuple[Any, Any]:
        model = Module()
        trainer = LIGHTNING.trainer(folder, callbacks=ours, max_epochs=3)
        trainer.fit(model, LIGHTNING.loader(BATCHES))
        return trainer, model

    return fit


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="projects whose names hold this only")
    only = parser.parse_args().only
    print("| project | predicted | differs |\n|---|---|---|")
    differs = []
    for name, make in ((name, make) for name, make in MODULES.items() if only in name):
        try:
            make()
        except Exception as error:  # any error of a project that does not work with this torch
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:140]
            print(f"| {name} | not compared: {reason} | |", flush=True)
            continue
        with tempfile.TemporaryDirectory() as place:
            ours, fit = callbacks(), fitted(make)
            watched = outcome(fit, Path(place) / "watched", ours)
            changed = differences(outcome(fit, Path(place) / "plain", []), watched)
        predicted = "yes" if ours[0].predictions is not None else "no"
        print(f"| {name} | {predicted} | {', '.join(changed) or 'nothing'} |", flush=True)
        differs += [name] * bool(changed)
    if differs:
        raise SystemExit(f"Training differs: {', '.join(differs)}")


if __name__ == "__main__":
    main()
