"""Twenty-two more modules of other projects, each a line or two to make, for `tests.soak.modules`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, nn

from tests.soak.losses import (
    Loss,
    images_of,
    next_word,
    squares,
    squares_of_images,
    squares_of_series,
    tokens_of,
)

Made = tuple[nn.Module, Loss]


def _noised() -> Made:
    """Give a U-Net of Diffusers, which gets the noise level."""
    model = import_module("diffusers").UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
    )

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        images = images_of(batch)[:, :, ::4, ::4]
        noise, times = torch.randn_like(images), torch.randint(1000, (len(images),))
        return nn.functional.mse_loss(module(images + noise, times).sample, noise)

    return model, loss


def _denoised() -> Made:
    """Give lucidrains' diffusion, which draws its noise and its times."""
    parts = import_module("denoising_diffusion_pytorch")
    unet = parts.Unet(dim=8, dim_mults=(1, 2), flash_attn=False)
    model = parts.GaussianDiffusion(unet, image_size=16, timesteps=20)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        return module(images_of(batch)[:, :, ::4, ::4].sigmoid())  # type: ignore[no-any-return]

    return model, loss


def _sentences() -> Made:
    """Give the pooling and the dense layer of Sentence Transformers."""
    models = import_module("sentence_transformers.models")
    pooling = models.Pooling(8, pooling_mode="mean")
    dense = models.Dense(8, 4)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        words = batch.unsqueeze(1).expand(-1, 6, -1)
        features = {"token_embeddings": words, "attention_mask": torch.ones(words.shape[:2])}
        return module(features)["sentence_embedding"].square().mean()  # type: ignore[no-any-return]

    return nn.Sequential(pooling, dense), loss


def _pairs() -> Made:
    """Give the two towers of OpenCLIP."""
    clip = import_module("open_clip.model")
    model = clip.CLIP(
        embed_dim=16,
        vision_cfg={"image_size": 64, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
        text_cfg={"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1},
    )

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        images, words, scale = module(images_of(batch), tokens_of(batch))[:3]
        return nn.functional.cross_entropy(scale * images @ words.T, torch.arange(len(batch)))

    return model, loss


def _drawn_paths() -> Made:
    """Give a ConvNeXt of timm that leaves out blocks at random."""
    create = import_module("timm").create_model
    return create("convnext_atto", pretrained=False, num_classes=4, drop_path_rate=0.3), squares_of_images


def _process() -> Made:
    """Give a Gaussian process of GPyTorch, whose loss is a likelihood."""
    gpytorch: Any = import_module("gpytorch")

    class Process(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            points = torch.randn(4, 8)
            distribution = gpytorch.variational.CholeskyVariationalDistribution(4)
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, distribution))
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        process: Any = module
        bound = gpytorch.mlls.VariationalELBO(process.likelihood, process, num_data=24)
        return -bound(process(batch), batch.sum(-1))  # type: ignore[no-any-return]

    return Process(), loss


def _turned() -> Made:
    """Give a layer of e3nn that is equivariant, whose code is made and scripted as it is built."""
    return import_module("e3nn.o3").Linear("2x0e+2x1o", "4x0e+2x1o"), squares


def _flow() -> Made:
    """Give a spline flow of Zuko."""
    flow = import_module("zuko").flows.NSF(features=8, transforms=2, hidden_features=(16,))

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        return -module().log_prob(batch).mean()  # type: ignore[no-any-return]

    return flow, loss


def _coupled() -> Made:
    """Give the couplings of normflows."""
    parts: Any = import_module("normflows")
    flows = [parts.flows.AffineCouplingBlock(parts.nets.MLP([4, 16, 8], init_zeros=True)) for _ in range(2)]
    model = parts.NormalizingFlow(parts.distributions.base.DiagGaussian(8), flows)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        flow: Any = module
        return flow.forward_kld(batch)  # type: ignore[no-any-return]

    return model, loss


def _masked() -> Made:
    """Give the masked autoregressive flow of nflows."""
    transform = import_module("nflows.transforms").MaskedAffineAutoregressiveTransform(features=8, hidden_features=16)
    normal = import_module("nflows.distributions.normal").StandardNormal([8])
    flow = import_module("nflows.flows").Flow(transform, normal)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        flow: Any = module
        return -flow.log_prob(batch).mean()  # type: ignore[no-any-return]

    return flow, loss


def _ordinary() -> Made:
    """Give a differential equation of torchdiffeq, solved back in time for its gradients."""
    solve = import_module("torchdiffeq").odeint_adjoint

    class Equation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.field(y)  # type: ignore[no-any-return]

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        return solve(module, batch, torch.linspace(0, 1, 3), method="rk4").square().mean()  # type: ignore[no-any-return]

    return Equation(), loss


def _operator() -> Made:
    """Give a Fourier neural operator of neuraloperator, which computes in complex numbers."""
    model = import_module("neuralop.models").FNO(n_modes=(4, 4), in_channels=3, out_channels=1, hidden_channels=8)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        return squares(module, images_of(batch)[:, :, ::4, ::4])

    return model, loss


def _patches() -> Made:
    """Give a vision transformer of vit-pytorch."""
    vit = import_module("vit_pytorch").ViT
    options = {"dim": 32, "depth": 2, "heads": 2, "mlp_dim": 32, "dropout": 0.1, "emb_dropout": 0.1}
    return vit(image_size=64, patch_size=16, num_classes=4, **options), squares_of_images


def _perceived() -> Made:
    """Give a Perceiver, whose layers share their weights."""
    perceiver = import_module("perceiver_pytorch").Perceiver
    latents = {"num_latents": 4, "latent_dim": 16, "latent_heads": 2, "latent_dim_head": 8, "cross_dim_head": 8}
    model = perceiver(num_freq_bands=2, max_freq=4.0, depth=2, input_channels=8, input_axis=1, num_classes=4, **latents)
    return model, squares_of_series


def _chosen() -> Made:
    """Give the network of TabNet, which chooses its features by sparse attention."""
    network = import_module("pytorch_tabnet.tab_network").TabNet

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        found, sparsity = module(batch)
        return found.square().mean() + sparsity  # type: ignore[no-any-return]

    return network(8, 2, n_d=4, n_a=4, n_steps=2, group_attention_matrix=torch.eye(8)), loss


def _spikes() -> Made:
    """Give spiking neurons of snnTorch over six steps, with a surrogate for their gradients."""
    neuron = import_module("snntorch").Leaky(beta=0.9, learn_beta=True)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        parts: Any = module
        state, total = parts[1].reset_mem(), torch.zeros(())
        for _ in range(6):
            spikes, state = parts[1](parts[0](batch), state)
            total = total + spikes.mean() + state.square().mean()
        return total

    return nn.ModuleList([nn.Linear(8, 16), neuron]), loss


def _efficient() -> Made:
    """Give the EfficientNet of efficientnet-pytorch, whose swish is a function of autograd's of its own."""
    network = import_module("efficientnet_pytorch").EfficientNet
    return network.from_name("efficientnet-b0", num_classes=4, image_size=64), squares_of_images


def _points() -> Made:
    """Give a layer of E(n) equivariant graph networks."""
    layer = import_module("egnn_pytorch").EGNN(dim=8, m_dim=8, num_nearest_neighbors=2)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        features = batch.unsqueeze(0)
        found, places = module(features, features[..., :3])
        return found.square().mean() + places.square().mean()  # type: ignore[no-any-return]

    return layer, loss


def _approximate() -> Made:
    """Give the attention of Performers, whose projections are drawn."""
    attention = import_module("performer_pytorch").SelfAttention(dim=8, heads=2, dim_head=4, dropout=0.1)
    return attention, squares_of_series


def _near() -> Made:
    """Give the attention of local-attention, within windows."""
    model = import_module("local_attention").LocalTransformer(
        num_tokens=64, dim=16, depth=2, max_seq_len=8, local_attn_window_size=4, heads=2, dim_head=8
    )
    return model, next_word


def _sparse() -> Made:
    """Give the loss of entmax, a function of autograd's of its own."""
    entmax = import_module("entmax").Entmax15Loss()

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        return entmax(module(batch), torch.arange(len(batch)) % 4).mean()  # type: ignore[no-any-return]

    return nn.Linear(8, 4), loss


def _rotated() -> Made:
    """Give attention under positions that rotary-embedding-torch learns."""
    rotary = import_module("rotary_embedding_torch").RotaryEmbedding(dim=8, learned_freq=True)

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        parts: Any = module
        words = parts[0](batch.unsqueeze(1).unsqueeze(1).expand(-1, 1, 6, -1))
        turned = parts[1].rotate_queries_or_keys(words)
        return nn.functional.scaled_dot_product_attention(turned, turned, words).square().mean()

    return nn.ModuleList([nn.Linear(8, 8), rotary]), loss


SMALL: Final[dict[str, Callable[[], Made]]] = {
    "Diffusers": _noised,
    "denoising-diffusion-pytorch": _denoised,
    "Sentence Transformers": _sentences,
    "OpenCLIP": _pairs,
    "timm": _drawn_paths,
    "GPyTorch": _process,
    "e3nn": _turned,
    "Zuko": _flow,
    "normflows": _coupled,
    "nflows": _masked,
    "torchdiffeq": _ordinary,
    "neuraloperator": _operator,
    "vit-pytorch": _patches,
    "perceiver-pytorch": _perceived,
    "TabNet": _chosen,
    "snnTorch": _spikes,
    "efficientnet-pytorch": _efficient,
    "egnn-pytorch": _points,
    "Performer": _approximate,
    "local-attention": _near,
    "entmax": _sparse,
    "rotary-embedding-torch": _rotated,
}
