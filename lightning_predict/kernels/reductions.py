"""Operations that no model was trained on, expressed through those that one was.

A reduction says: this problem takes as long as so many of that problem. Each names where its factor comes from, and
each widens the interval, since the detour is not calibrated. Example::

    >>> from lightning_predict.kernels.operations import problem
    >>> step = problem("attention_backward", "bfloat16", batch=1, heads=8, seq=1024, head_dim=64)
    >>> [(part.times, part.problem.operation) for part in reduced(step)]
    [(3.0, 'attention')]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lightning_predict.kernels.memory_bound import MEMORY_BOUND
from lightning_predict.kernels.operations import COMPUTE_BYTES, Part, Problem, batch_of, proxies_of
from lightning_predict.kernels.recurrent import GATES
from lightning_predict.kernels.vector import NORM_BACKWARD_RATIOS, TRANSFER_RATIOS

ATTENTION_BACKWARD_RATIO: Final = 3.0
"""Backward over forward of fused attention: median of 18 cuDNN rows on the H200 (2.87 to 3.85), cudnn-frontend."""

KERNELS_BETWEEN_STEPS: Final = 5
"""Shortest kernels that a step of a recurrent layer takes as long as, beside its product and its gates. With cuDNN 5 to
7 it was 8 (DeepBench's smallest layers, LSTM on the V100); six layers of both directions with torch 2.5 (KernelBench,
four GPUs) ask for 1 to 5. With 5, DeepBench's rows come out 9 % too fast in the median, at 24 % off instead of 22 %."""

KERNELS_OF_A_NEIGHBOUR: Final = 2
"""Shortest kernels more for each layer or direction that is computed beside the first, whose product and gates are
launched, too. Six layers of a GRU of 256 hidden units take 32 to 60 microseconds a step (the same rows of KernelBench,
which so are no test of it)."""


Reduction = Callable[[Problem], tuple[Part, ...]]


def reduced(problem: Problem) -> tuple[Part, ...]:
    """Parts whose times add up to the problem's; empty where there is no reduction."""
    reduction = _REDUCTIONS.get(problem.operation)
    return proxies_of(problem) if reduction is None else reduction(problem)


def _attention(problem: Problem) -> tuple[Part, ...]:
    """Two batched products; the softmax between them is fused."""
    w = problem.shape
    b = w["batch"] * w["heads"]
    visible = 0.5 if w["causal"] else 1.0
    scores = Problem("bmm", problem.dtype, (b, w["seq"], w["kv_seq"], w["head_dim"]))
    values = Problem("bmm", problem.dtype, (b, w["seq"], w["head_dim"], w["kv_seq"]))
    return Part(visible, scores), Part(visible, values)


def _attention_backward(problem: Problem) -> tuple[Part, ...]:
    return (Part(ATTENTION_BACKWARD_RATIO, Problem("attention", problem.dtype, problem.dims)),)


def _product_backward(problem: Problem) -> tuple[Part, ...]:
    """Two products: gradient x weight for the data, data x gradient for the weight."""
    b, m, n, k = problem.dims
    if problem.operation == "linear_backward":
        shapes = ((1.0, b * m, k, n), (1.0, k, n, b * m))
    else:
        shapes = ((b, m, k, n), (b, k, n, m))
    name = problem.operation.removesuffix("_backward")
    return tuple(Part(1.0, Problem(name, problem.dtype, shape)) for shape in shapes)


def _eager_attention(problem: Problem) -> tuple[Part, ...]:
    """Scores, their scaling, the mask where there is one, softmax, and the product with the values.

    Backward: two products for each of the forward's, the gradient of the softmax, and the scaling.
    """
    w = problem.shape
    b, dtype = w["batch"] * w["heads"], problem.dtype
    scores = Problem("bmm", dtype, (b, w["seq"], w["kv_seq"], w["head_dim"]))
    values = Problem("bmm", dtype, (b, w["seq"], w["head_dim"], w["kv_seq"]))
    matrix = (b * w["seq"], w["kv_seq"])
    scaling = Part(1.0, Problem("mul_scalar", dtype, matrix))
    if problem.operation.endswith("_backward"):
        softmax = Part(1.0, Problem("softmax_backward", dtype, matrix))
        transposed = Problem("bmm", dtype, (b, w["kv_seq"], w["head_dim"], w["seq"]))
        return Part(1.0, scores), Part(1.0, values), Part(2.0, transposed), softmax, scaling
    mask = (Part(1.0, Problem("add_scalar", dtype, matrix)),) if w["causal"] else ()
    return Part(1.0, scores), scaling, *mask, Part(1.0, Problem("softmax", dtype, matrix)), Part(1.0, values)


def _log_softmax(problem: Problem) -> tuple[Part, ...]:
    """As long as the softmax, which reads and writes as much."""
    name = problem.operation.removeprefix("log_")
    return (Part(1.0, Problem(name, problem.dtype, problem.dims)),)


def _norm_backward(problem: Problem) -> tuple[Part, ...]:
    forward = Problem(problem.operation.removesuffix("_backward"), problem.dtype, problem.dims)
    return (Part(NORM_BACKWARD_RATIOS[problem.operation], forward),)


def _recurrent(problem: Problem) -> tuple[Part, ...]:
    """Products with the input, one for all steps of a layer, and steps that wait for each other.

    A step is a small product, a pass over its gates, and the kernels in between. What a library computes beside each
    other is one batched product: the layers of one direction, which follow each other as a wave, a step behind, or the
    two directions of a layer, which both must end before the next layer begins (Appleyard et al., "Optimizing
    Performance of Recurrent Neural Networks on GPUs", 2016). The gradients of both weights are again one product for
    all steps.
    """
    w = problem.shape
    is_backward = problem.operation.endswith("_backward")
    gates = GATES[problem.operation.removesuffix("_backward")] * w["hidden"]
    rows, hidden, dtype = w["batch"] * w["steps"], w["hidden"], problem.dtype
    parts = []
    for layer in range(int(w["layers"])):
        features = w["input_size"] if layer == 0 else hidden * w["directions"]
        if is_backward:
            once = [(rows, features, gates), (gates, features, rows), (gates, hidden, rows)]
        else:
            once = [(rows, gates, features)]
        parts += [Part(w["directions"], Problem("linear", dtype, (1.0, *shape))) for shape in once]
    together = w["layers"] if w["directions"] == 1 else w["directions"]
    chain = w["layers"] * w["directions"] * w["steps"] / together
    step = (w["batch"], hidden, gates) if is_backward else (w["batch"], gates, hidden)
    name = "linear" if together == 1 else "bmm"
    parts.append(Part(chain, Problem(name, dtype, (together, *step))))
    # A wave takes as many more steps as there are layers before the last.
    waits = chain + (w["layers"] - 1 if w["directions"] == 1 else 0)
    return (*parts, *_steps(w["batch"] * together, w["hidden"], gates, dtype, chain, waits, together))


def _steps(
    rows: float, hidden: float, gates: float, dtype: str, chain: float, waits: float, together: float
) -> tuple[Part, ...]:
    """Steps beside their products: both halves of the gates and the cell are read; gates, cell and state written."""
    size = rows * COMPUTE_BYTES[dtype]
    dims = (size * (2 * gates + hidden), size * (gates + 2 * hidden), 0.0)
    kernels = KERNELS_BETWEEN_STEPS + KERNELS_OF_A_NEIGHBOUR * (together - 1)
    waiting = Part(waits * kernels, Problem("transfer", "float32", (4.0, 4.0, 0.0)))
    return Part(chain, Problem("transfer", "float32", dims)), waiting


def _as_transfer(problem: Problem) -> tuple[Part, ...]:
    """Only the bytes are known: half of the traffic read, half written, whatever the true split.

    Where it was measured how much longer that takes than a transfer, so much longer.
    """
    batch = batch_of([problem])
    half = float(batch.bytes_moved[0]) / 2
    times = TRANSFER_RATIOS.get(problem.operation, 1.0)
    return (Part(times, Problem("transfer", "float32", (half, half, float(batch.flops[0])))),)


_REDUCTIONS: Final[dict[str, Reduction]] = {
    "attention": _attention,
    "attention_backward": _attention_backward,
    **dict.fromkeys(NORM_BACKWARD_RATIOS, _norm_backward),
    **dict.fromkeys([name + suffix for name in GATES for suffix in ("", "_backward")], _recurrent),
    **dict.fromkeys(
        (
            "batch_norm batch_norm_backward group_norm group_norm_backward rms_norm dropout embedding "
            "embedding_backward cross_entropy cross_entropy_backward"
        ).split(),
        _as_transfer,
    ),
    **dict.fromkeys(MEMORY_BOUND, _as_transfer),
    **dict.fromkeys(("log_softmax", "log_softmax_backward"), _log_softmax),
    **dict.fromkeys(("linear_backward", "bmm_backward"), _product_backward),
    **dict.fromkeys(("eager_attention", "eager_attention_backward"), _eager_attention),
}
