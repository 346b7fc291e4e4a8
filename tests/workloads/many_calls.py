"""A step on the meta device that makes many of the dispatcher's calls, each once: `-m tests.workloads.many_calls`.

It writes `tests/traces/many_calls.json.gz`, so that its prediction does not change with the torch that runs
the tests. Sizes differ, so that none is taken for another unseen.
"""

from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import lightning_predict as lp

FILE: Final = Path(__file__).parents[1] / "traces" / "many_calls.json.gz"


def values(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*sizes, device="meta", dtype=dtype, requires_grad=dtype.is_floating_point)


def numbers(*sizes: int) -> Tensor:
    return torch.empty(*sizes, device="meta", dtype=torch.int64)


def with_gradient(results: list[Tensor]) -> None:
    """Run the backward pass of each result."""
    for result in results:
        if result.requires_grad:
            result.real.sum().backward() if result.is_complex() else result.sum().backward()


def convolutions() -> None:
    sound, image, volume = values(5, 24, 3001), values(6, 32, 97, 131), values(3, 8, 17, 29, 37)
    with torch.device("meta"):
        layers = (
            (nn.Conv1d(24, 40, 7, stride=3, padding=2), sound),
            (nn.Conv2d(32, 48, (3, 5), stride=2, padding=1, dilation=(2, 1)), image),
            (nn.Conv2d(32, 32, 5, groups=32), image),
            (nn.Conv2d(32, 64, 3, groups=4), image.to(memory_format=torch.channels_last)),
            (nn.Conv3d(8, 20, 3, padding=(1, 0, 2)), volume),
            (nn.ConvTranspose1d(24, 10, 4, stride=2), sound),
            (nn.ConvTranspose2d(32, 12, (4, 3), stride=2, padding=1, output_padding=1), image),
            (nn.ConvTranspose3d(8, 6, 2, stride=2), volume),
        )
        norms = ((nn.BatchNorm2d(32), image), (nn.GroupNorm(4, 32), image), (nn.InstanceNorm2d(32), image))
    with_gradient([layer(data) for layer, data in (*layers, *norms)])
    with_gradient(
        [
            F.avg_pool2d(image, 3, stride=2),
            F.max_pool2d(image, (2, 3)),
            F.adaptive_avg_pool2d(image, (11, 7)),
            F.avg_pool3d(volume, 2),
            F.max_pool3d(volume, 3),
            F.interpolate(image, scale_factor=2.0, mode="bilinear"),
            F.pad(image, (1, 2, 3, 4)),
            F.pixel_shuffle(image, 4),
        ]
    )


def products() -> None:
    a, b, c = values(7, 513, 257), values(7, 257, 385), values(1031, 769)
    with_gradient([torch.bmm(a, b), torch.baddbmm(values(7, 513, 385), a, b), torch.addbmm(values(513, 385), a, b)])
    with_gradient(
        [torch.mv(c, values(769)), torch.dot(values(5003), values(5003)), torch.addmv(values(1031), c, values(769))]
    )
    with torch.device("meta"):
        bilinear = nn.Bilinear(31, 41, 53)
    with_gradient([bilinear(values(67, 31), values(67, 41)), torch.cdist(values(3, 211, 33), values(3, 307, 33))])
    with_gradient([F.linear(values(129, 769, dtype=torch.bfloat16), values(1031, 769, dtype=torch.bfloat16))])
    for sizes in ((3, 8, 515, 64), (3, 8, 515, 80)):
        q, k, v = (values(*sizes, dtype=torch.float16) for _ in range(3))
        with_gradient([F.scaled_dot_product_attention(q, k, v, is_causal=True)])


def sequences() -> None:
    with torch.device("meta"):
        layers = (nn.LSTM(96, 160, 2, bidirectional=True), nn.GRU(96, 136), nn.RNN(96, 72))
        embedding, bag = nn.Embedding(30011, 264), nn.EmbeddingBag(20011, 88, mode="sum")
        norm, rms = nn.LayerNorm(264), nn.RMSNorm(264)
    data = values(37, 19, 96)
    with_gradient([layer(data)[0] for layer in layers])
    words = embedding(numbers(23, 101))
    with_gradient([norm(words), rms(embedding(numbers(29, 107))), bag(numbers(509, 11))])


def losses() -> None:
    scores, labels = values(301, 1009), numbers(301)
    image, target = values(5, 21, 65, 71), numbers(5, 65, 71)
    a, b = values(303, 511), torch.empty(303, 511, device="meta")
    with_gradient(
        [
            F.cross_entropy(scores, labels),
            F.nll_loss(F.log_softmax(image, 1), target),
            F.mse_loss(a, b),
            F.l1_loss(a, b),
            F.smooth_l1_loss(a, b),
            F.huber_loss(a, b),
            F.binary_cross_entropy(a, b),
            F.binary_cross_entropy_with_logits(a, b),
            F.kl_div(a, b, reduction="batchmean"),
            F.soft_margin_loss(a, b),
            torch.logsumexp(a, 1),
            torch.softmax(a, 0),
            torch.cumsum(a, 1),
            torch.cumprod(a, 0),
            torch.sort(a, 1).values,
            torch.topk(a, 7).values,
            torch.kthvalue(a, 3).values,
            torch.median(a, 1).values,
            torch.max(a, 1).values,
            torch.mean(a, 0),
            torch.std(a, 1),
            torch.where(b > 0, a, b),
            torch.clamp(a, 0, 1),
            F.gelu(a),
            F.silu(a),
            F.elu(a),
            F.softplus(a),
            F.leaky_relu(a),
            F.dropout(a, 0.1),
            torch.pow(a, 2.5),
            torch.cat([a, values(97, 511)]),
            torch.index_select(a, 0, numbers(211)),
            torch.gather(a, 1, numbers(303, 47)),
            torch.scatter_add(a, 1, numbers(303, 47), values(303, 47)),
            torch.roll(a, 3, 1),
            a.t().contiguous(),
            a.half(),
        ]
    )
    torch.argmax(b, 1), torch.searchsorted(b, b), torch.bucketize(b, values(33).detach())


def linear_algebra() -> None:
    square = values(11, 131, 131)
    spectrum = torch.fft.rfft(values(13, 1201))
    with_gradient([torch.fft.irfft(spectrum), torch.fft.fft2(values(3, 65, 129)), torch.linalg.inv(square)])
    with torch.no_grad():
        torch.linalg.cholesky(square)
        torch.linalg.qr(values(5, 211, 97))
        torch.linalg.svd(values(5, 211, 97), full_matrices=False)
        torch.linalg.svdvals(values(5, 97, 211))
        torch.linalg.eigh(square)
        torch.linalg.eigvalsh(square)
        torch.linalg.eigvals(square)
        torch.linalg.solve(square, values(11, 131, 17))
        torch.linalg.solve_triangular(square, values(11, 131, 17), upper=True)
        torch.linalg.lu_factor(square)
        torch.linalg.slogdet(square)
        torch.linalg.matrix_exp(square)


def updates() -> None:
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
        weights = [values(513, 257), values(769)]
        optimizer = kind(weights, lr=0.1)
        (weights[0].sum() + weights[1].sum()).backward()
        optimizer.step()


def step() -> None:
    for part in (convolutions, products, sequences, losses, linear_algebra, updates):
        part()


if __name__ == "__main__":
    lp.capture(step, warmup_steps=0).save(str(FILE))
