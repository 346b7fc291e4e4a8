"""Train modules of other projects with our callbacks and without: `python -m tests.soak.modules`.

Each is fitted twice from the same seeds; printed is what differs. A project that is not installed, or that cannot be
imported with this torch, is named with the reason. `make soak-modules` installs the projects of `requirements.txt`.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from collections.abc import Callable
from importlib import import_module
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
from tests.soak.losses import Loss, images_of, next_word, squares  # noqa: E402
from tests.soak.small_modules import SMALL  # noqa: E402

BATCHES, ROWS = 6, 4


def adapters() -> tuple[nn.Module, Loss]:
    """Give a GPT of transformers with PEFT's adapters of low rank."""
    from transformers import GPT2Config, GPT2LMHeadModel

    peft = import_module("peft")
    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16)
    model: Any = peft.get_peft_model(
        GPT2LMHeadModel(config), peft.LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1)
    )

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        tokens = (batch.abs() * 8).long().clamp(max=63)
        return module(input_ids=tokens, labels=tokens).loss  # type: ignore[no-any-return]

    return model, loss


def graphs() -> tuple[nn.Module, Loss]:
    """Give a graph network of PyTorch Geometric, whose edges are drawn anew for each batch."""
    layers = import_module("torch_geometric.nn")
    first, second = layers.GCNConv(8, 16), layers.GATConv(16, 2, dropout=0.2)
    model = layers.Sequential("x, edges", [(first, "x, edges -> x"), nn.ReLU(), (second, "x, edges -> x")])

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        return module(batch, torch.randint(len(batch), (2, 12))).square().mean()  # type: ignore[no-any-return]

    return model, loss


def contrast() -> tuple[nn.Module, Loss]:
    """Give Lightly's SimCLR head and loss, over two noisy views."""
    head = import_module("lightly.models.modules.heads").SimCLRProjectionHead(16, 16, 8)
    model, criterion = nn.Sequential(nn.Linear(8, 16), head), import_module("lightly.loss").NTXentLoss()

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        return criterion(*(module(batch + 0.1 * torch.randn_like(batch)) for _ in range(2)))  # type: ignore[no-any-return]

    return model, loss


def forecast() -> tuple[nn.Module, Loss]:
    """Give a block of PyTorch Forecasting's N-BEATS, whose loss is of quantiles."""
    blocks = import_module("pytorch_forecasting.models.nbeats.sub_modules")
    metric = import_module("pytorch_forecasting.metrics").QuantileLoss([0.1, 0.5, 0.9])
    model = blocks.NBEATSGenericBlock(units=16, thetas_dim=4, backcast_length=6, forecast_length=6)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        _, ahead = module(batch[:, :6])
        return metric.loss(ahead.unsqueeze(-1).expand(-1, -1, 3), batch[:, 2:]).mean()  # type: ignore[no-any-return]

    return model, loss


def segments() -> tuple[nn.Module, Loss]:
    """Give a U-Net of Segmentation Models with its Dice loss."""
    segmentation = import_module("segmentation_models_pytorch")
    model = segmentation.Unet("resnet18", encoder_weights=None, classes=2)
    criterion = segmentation.losses.DiceLoss("multiclass")

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        images = images_of(batch)
        return criterion(module(images), (images[:, 0] > 0).long())  # type: ignore[no-any-return]

    return model, loss


def satellites() -> tuple[nn.Module, Loss]:
    """Give TorchGeo's FarSeg, which separates the foreground of aerial images."""
    model = import_module("torchgeo.models").FarSeg("resnet18", classes=2, backbone_pretrained=False)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        images = images_of(batch)
        return nn.functional.cross_entropy(module(images), (images[:, 0] > 0).long())

    return model, loss


def cells() -> tuple[nn.Module, Loss]:
    """Give the variational autoencoder of scvi-tools, which draws its latent variables."""
    names = import_module("scvi").REGISTRY_KEYS
    model = import_module("scvi.module").VAE(n_input=8, n_hidden=16, n_latent=4)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        counts = (batch.abs() * 4).round()
        one = torch.zeros(len(counts), 1)
        tensors = {names.X_KEY: counts, names.BATCH_KEY: one.long(), names.LABELS_KEY: one.long()}
        *_, found = module(tensors)
        return found.loss  # type: ignore[no-any-return]

    return model, loss


def anomalies() -> tuple[nn.Module, Loss]:
    """Give the generator of anomalib's GANomaly."""
    parts = import_module("anomalib.models.image.ganomaly.torch_model")
    model = parts.Generator((64, 64), latent_vec_size=8, num_input_channels=3, n_features=8, extra_layers=0)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        images = images_of(batch)
        fake, first, second = module(images)
        return (fake - images).abs().mean() + (first - second).square().mean()  # type: ignore[no-any-return]

    return model, loss


def equations() -> tuple[nn.Module, Loss]:
    """Give a network of PINA, whose tensors are a class of its own with labels."""
    label = import_module("pina").LabelTensor
    model = import_module("pina.model").FeedForward(input_dimensions=2, output_dimensions=1, inner_size=16)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        return module(label(batch[:, :2], ["x", "y"])).as_subclass(Tensor).square().mean()  # type: ignore[no-any-return]

    return model, loss


def volumes() -> tuple[nn.Module, Loss]:
    """Give a U-Net of MONAI with its Dice loss."""
    nets = import_module("monai.networks.nets")
    model = nets.UNet(2, in_channels=3, out_channels=2, channels=(8, 16), strides=(2,), dropout=0.1)
    criterion = import_module("monai.losses").DiceCELoss(to_onehot_y=True, softmax=True)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        images = images_of(batch)
        return criterion(module(images), (images[:, :1] > 0).long())  # type: ignore[no-any-return]

    return model, loss


def series() -> tuple[nn.Module, Loss]:
    """Give the gated feed-forward part and the norm of Darts' transformers."""
    norm = import_module("darts.models.components.layer_norm_variants").RMSNorm(8)
    gated = import_module("darts.models.components.feed_forward").FeedForward(8, 16, is_gated=True)
    return nn.Sequential(norm, gated), squares


def likelihood() -> tuple[nn.Module, Loss]:
    """Give GluonTS' feed-forward forecaster, which predicts a distribution."""
    module = import_module("gluonts.torch.model.simple_feedforward.module")
    model = module.SimpleFeedForwardModel(prediction_length=2, context_length=6, hidden_dimensions=[16])

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        ahead: Any = module
        return ahead.loss(batch[:, :6], batch[:, 6:], torch.ones_like(batch[:, 6:])).mean()  # type: ignore[no-any-return]

    return model, loss


def tables() -> tuple[nn.Module, Loss]:
    """Give the gated feature learning of PyTorch Tabular."""
    parts = import_module("pytorch_tabular.models.common.layers")
    return parts.GatedFeatureLearningUnit(n_features_in=8, n_stages=2, feature_sparsity=0.3), squares


def posterior() -> tuple[nn.Module, Loss]:
    """Give a Bayesian layer of Torch Uncertainty, whose weights are drawn anew for each batch."""
    layers = import_module("torch_uncertainty.layers.bayesian")
    return nn.Sequential(layers.BayesLinear(8, 16), nn.ReLU(), layers.BayesLinear(16, 2)), squares


def distances() -> tuple[nn.Module, Loss]:
    """Give a triplet loss of PyTorch Metric Learning with the miner that chooses them."""
    criterion = import_module("pytorch_metric_learning.losses").TripletMarginLoss()
    miner = import_module("pytorch_metric_learning.miners").MultiSimilarityMiner()

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        found, labels = module(batch), torch.arange(len(batch)) % 2
        return criterion(found, labels, miner(found, labels)) + found.square().mean()  # type: ignore[no-any-return]

    return nn.Linear(8, 4), loss


def augmented() -> tuple[nn.Module, Loss]:
    """Give images that Kornia augments at random."""
    augmentation = import_module("kornia.augmentation")
    augment = augmentation.AugmentationSequential(
        augmentation.RandomAffine(15.0, p=0.5), augmentation.RandomHorizontalFlip(p=0.5), data_keys=["input"]
    )
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        return module(augment(images_of(batch))).square().mean()  # type: ignore[no-any-return]

    return model, loss


def words() -> tuple[nn.Module, Loss]:
    """Give a GPT of LitGPT with rotary positions and grouped queries."""
    parts = import_module("litgpt")
    config = parts.Config(
        block_size=16, vocab_size=64, padded_vocab_size=64, n_layer=2, n_head=4, n_query_groups=2, n_embd=32
    )
    return parts.GPT(config), next_word


def wrapped() -> tuple[nn.Module, Loss]:
    """Give a decoder of x-transformers."""
    parts = import_module("x_transformers")
    layers = parts.Decoder(dim=32, depth=2, heads=2, attn_dropout=0.1, ff_dropout=0.1)
    return parts.TransformerWrapper(num_tokens=64, max_seq_len=16, attn_layers=layers), next_word


def codebook() -> tuple[nn.Module, Loss]:
    """Give a layer that quantises vectors, whose codebook is an average that moves without gradients."""
    quantize = import_module("vector_quantize_pytorch").VectorQuantize(dim=8, codebook_size=16)
    model = nn.ModuleList([nn.Linear(8, 8), quantize])

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        parts: Any = module
        found, _, commitment = parts[1](parts[0](batch).unsqueeze(0))
        return found.square().mean() + commitment.sum()  # type: ignore[no-any-return]

    return model, loss


def sounds() -> tuple[nn.Module, Loss]:
    """Give a block of the Conformer."""
    block = import_module("conformer").ConformerBlock(dim=8, dim_head=4, heads=2, attn_dropout=0.1, ff_dropout=0.1)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        return module(batch.unsqueeze(1).expand(-1, 6, -1)).square().mean()  # type: ignore[no-any-return]

    return block, loss


def noise() -> tuple[nn.Module, Loss]:
    """Give a stochastic differential equation of torchsde, solved with noise that it draws."""
    solve = import_module("torchsde").sdeint

    class Equation(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.spread = nn.Linear(8, 8), nn.Linear(8, 8)

        def f(self, t: Tensor, y: Tensor) -> Tensor:
            return self.drift(y)  # type: ignore[no-any-return]

        def g(self, t: Tensor, y: Tensor) -> Tensor:
            return self.spread(y).sigmoid()  # type: ignore[no-any-return]

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        return solve(module, batch, torch.linspace(0, 1, 3), dt=0.25).square().mean()  # type: ignore[no-any-return]

    return Equation(), loss


MODULES: Final[dict[str, Callable[[], tuple[nn.Module, Loss]]]] = {
    "transformers with PEFT": adapters,
    "torch-geometric": graphs,
    "lightly": contrast,
    "pytorch-forecasting": forecast,
    "segmentation-models-pytorch": segments,
    "torchgeo": satellites,
    "scvi-tools": cells,
    "anomalib": anomalies,
    "PINA": equations,
    "MONAI": volumes,
    "Darts": series,
    "GluonTS": likelihood,
    "PyTorch Tabular": tables,
    "Torch Uncertainty": posterior,
    "PyTorch Metric Learning": distances,
    "Kornia": augmented,
    "LitGPT": words,
    "x-transformers": wrapped,
    "vector-quantize-pytorch": codebook,
    "Conformer": sounds,
    "torchsde": noise,
    **SMALL,
}


def fitted(make: Callable[[], tuple[nn.Module, Loss]]) -> features.Fit:
    """A fit of a module of others."""

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
            print(
                f"| {name} | not compared: {type(error).__name__}: {' '.join(str(error).split())[:120]} | |", flush=True
            )
            continue
        with tempfile.TemporaryDirectory() as place:
            ours = callbacks()
            fit = fitted(make)
            watched = outcome(fit, Path(place) / "watched", ours)
            found = differences(outcome(fit, Path(place) / "plain", []), watched)
        print(
            f"| {name} | {'yes' if ours[0].predictions is not None else 'no'} | {', '.join(found) or 'nothing'} |",
            flush=True,
        )
        differs += [name] * bool(found)
    if differs:
        raise SystemExit(f"Training differs: {', '.join(differs)}")


if __name__ == "__main__":
    main()
