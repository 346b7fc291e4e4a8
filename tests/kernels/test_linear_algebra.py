"""Factorisations, transforms, sorts and sparse products: work derived by hand, and never faster than the machine."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.kernels.operations import OperationShape, batch_shapes, operation_shape, operation_spec
from lightning_predict.kernels.translation import translate
from lightning_predict.record.trace import Flags, Operation, TensorInfo, Trace

N = 64
H100 = "H100-SXM-80GB"


def recorded(step: Callable[[], Any]) -> Trace:
    return lp.capture(step, warmup_steps=0)


def shapes_of(step: Callable[[], Any], *, units: tuple[str, ...] = ("tensor",)) -> list[OperationShape]:
    trace = recorded(step)
    shapes = [shape for operation in trace.operations for shape in translate(operation, trace.flags)]
    return [shape for shape in shapes if operation_spec(shape.operation).units in units]


def flops_of(shapes: list[OperationShape]) -> float:
    return math.fsum(float(batch_shapes([shape]).flops[0]) for shape in shapes)


def meta(*shape: int, **kwargs: Any) -> torch.Tensor:
    return torch.empty(*shape, device="meta", **kwargs)


SQUARE, TALL = meta(N, N), meta(4 * N, N)
SYMMETRIC_SOLVE = 2 * N**3  # two triangular solves for N right-hand sides: N² each and each


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda: torch.linalg.cholesky(SQUARE), N**3 / 3),
        (lambda: torch.linalg.solve(SQUARE, meta(N)), 2 / 3 * N**3 + 2 * N**2),
        (lambda: torch.linalg.solve(SQUARE, SQUARE), 2 / 3 * N**3 + SYMMETRIC_SOLVE),
        (lambda: torch.linalg.inv(SQUARE), 2 / 3 * N**3 + SYMMETRIC_SOLVE),
        (lambda: torch.linalg.det(SQUARE), 2 / 3 * N**3),
        (lambda: torch.linalg.slogdet(SQUARE), 2 / 3 * N**3),
        (lambda: torch.linalg.lu(TALL), N**2 * (4 * N - N / 3)),
        (lambda: torch.linalg.solve_triangular(SQUARE, SQUARE, upper=True), N**3),
        (lambda: torch.cholesky_solve(SQUARE, SQUARE), SYMMETRIC_SOLVE),
        (lambda: torch.linalg.qr(TALL, mode="r"), 2 * N**2 * (4 * N - N / 3)),
        (lambda: torch.linalg.qr(TALL), 4 * N**2 * (4 * N - N / 3)),
        (lambda: torch.linalg.eigh(SQUARE), 9 * N**3),
        (lambda: torch.linalg.eig(SQUARE), 25 * N**3),
        (lambda: torch.linalg.svd(SQUARE), 22 * N**3),
        (lambda: torch.linalg.svd(TALL, full_matrices=False), 14 * 4 * N * N**2 + 8 * N**3),
        # With all vectors of the longer side: 4 m n (m - n) more.
        (lambda: torch.linalg.svd(TALL), 14 * 4 * N * N**2 + 8 * N**3 + 4 * (4 * N) * N * (3 * N)),
        (lambda: torch.linalg.matrix_exp(SQUARE), 8 * 2 * N**3),
        (lambda: torch.linalg.cholesky(meta(5, N, N)), 5 * N**3 / 3),
        (lambda: torch.linalg.cholesky(meta(N, N, dtype=torch.complex64)), 4 * N**3 / 3),
    ],
)
def test_a_factorisation_has_its_textbook_flops(step: Callable[[], Any], expected: float) -> None:
    assert flops_of(shapes_of(step)) == pytest.approx(expected)


def test_least_squares_and_backward_passes_of_solves_by_hand() -> None:
    sides = TensorInfo((4 * N, 3), "float32")
    operation = Operation(name="aten::linalg_lstsq", phase="forward", inputs=(TensorInfo((4 * N, N), "float32"), sides))
    # R: 2 n² (m - n/3); its reflectors on three columns: 4 m n each; the solve: n² each.
    expected = 2 * N**2 * (4 * N - N / 3) + 4 * (4 * N) * N * 3 + N**2 * 3
    assert flops_of(list(translate(operation, Flags()))) == pytest.approx(expected)
    matrix = meta(N, N, requires_grad=True)
    forward = flops_of(shapes_of(lambda: torch.linalg.solve(matrix, SQUARE)))
    both = flops_of(shapes_of(lambda: torch.linalg.solve(matrix, SQUARE).sum().backward()))
    # Two triangular solves for the gradient of the right-hand sides, and a product for the matrix's.
    assert both == pytest.approx(forward + 2 * N**3 + 2 * N**3)


@pytest.mark.parametrize("name", ["solve", "inv", "cholesky", "qr", "svd", "eigh", "matrix_exp", "det"])
def test_no_factorisation_is_faster_than_the_peak_and_its_interval_is_wide(name: str) -> None:
    matrix = meta(4096, 4096)
    given = (matrix, matrix) if name == "solve" else (matrix,)
    trace = recorded(lambda: getattr(torch.linalg, name)(*given))
    (prediction,) = lp.predict(trace, gpus=[H100]).values()
    shapes = [shape for operation in trace.operations for shape in translate(operation, trace.flags)]
    # A copy of the matrix takes 0.06 ms; its Cholesky alone, the cheapest, 4096³ / 3 FLOPs at 67 TFLOP/s 0.34 ms.
    assert prediction.iteration_seconds_low >= flops_of(shapes) / gpu(H100).peak_flops_per_second["float32"]
    assert prediction.iteration_seconds_high > 3 * prediction.iteration_seconds


def test_columns_wait_for_each_other() -> None:
    small, large = (lp.operator_seconds("cholesky", H100, n=n) for n in (64, 512))
    # So little work that only the wait is left: 512 kernels for 64, of 2 µs.
    assert small == pytest.approx(64 * 2e-6, rel=0.1)
    assert large == pytest.approx(512 * 2e-6, rel=0.1)
    assert lp.operator_seconds("cholesky", H100, n=64, batch=100) < 2 * small


@pytest.mark.parametrize(
    ("shapes", "flops"),
    [
        ([(96, 16), (8, 16, 4), (8,)], 2 * 96 * 16 * 4),  # rows cut into groups: tokens by experts
        ([(8, 96, 16), (16, 24), (8,)], 2 * 96 * 16 * 24),  # columns cut
        ([(16, 96), (96, 4), (8,)], 2 * 16 * 96 * 4),  # depth cut: gradients of the weights
        ([(8, 96, 16), (8, 16, 4)], 8 * 2 * 96 * 16 * 4),
        ([(2, 16), (8, 16, 4), (8,)], 8 * 2 * 1 * 16 * 4),  # fewer rows than groups: one each at most
    ],
)
@pytest.mark.parametrize("name", ["aten::_grouped_mm", "aten::_scaled_grouped_mm"])
def test_a_grouped_product_has_the_work_of_its_groups(name: str, shapes: list[tuple[int, ...]], flops: int) -> None:
    left, right, *offsets = shapes
    dtype = "bfloat16" if name == "aten::_grouped_mm" else "float8_e4m3fn"
    scales = () if name == "aten::_grouped_mm" else (TensorInfo((96,), "float32"),) * 2
    inputs = (
        TensorInfo(left, dtype),
        TensorInfo(right, dtype),
        *scales,
        *(TensorInfo(offset, "int32") for offset in offsets),
    )
    (shape,) = translate(Operation(name=name, phase="forward", inputs=inputs), Flags())
    assert (shape.operation, shape.dims[0]) == ("bmm", 8)
    assert shape.dtype == ("bfloat16" if name == "aten::_grouped_mm" else "float8")
    assert flops_of([shape]) == flops


def test_bilinear_complex_and_grouped_products_by_hand() -> None:
    layer = torch.nn.Bilinear(20, 30, 40, device="meta")
    first, second = meta(128, 20), meta(128, 30)
    shapes = shapes_of(lambda: layer(first, second))
    # For each of 40 outputs: (128 x 20) by (20 x 30), and a scalar product of 30 for each of 128 rows.
    assert len(shapes) == 2 * 40
    assert flops_of(shapes) == 40 * (2 * 128 * 20 * 30 + 2 * 128 * 30)
    left = meta(8, 16, dtype=torch.complex64)
    assert flops_of(shapes_of(lambda: left @ left.T)) == 4 * 2 * 8 * 16 * 8
    double = shapes_of(lambda: left.to(torch.complex128) @ left.T.to(torch.complex128))
    assert double[0].dtype == "float64"
    tokens, experts = meta(16384, 4096, dtype=torch.bfloat16), meta(64, 4096, 2048, dtype=torch.bfloat16)
    trace = recorded(lambda: torch._grouped_mm(tokens, experts, offs=meta(64, dtype=torch.int32)))
    (prediction,) = lp.predict(trace, gpus=[H100]).values()
    assert prediction.iteration_seconds_low >= 2 * 16384 * 4096 * 2048 / gpu(H100).peak_flops_per_second["bfloat16"]


@pytest.mark.parametrize(
    ("step", "flops"),
    [
        (lambda: torch.fft.fft(meta(3, 1024, dtype=torch.complex64)), 3 * 5 * 1024 * 10),
        (lambda: torch.fft.rfft(meta(3, 1024)), 3 * 5 * 1024 * 10 / 2),
        (lambda: torch.fft.irfft(meta(3, 513, dtype=torch.complex64)), 3 * 5 * 1024 * 10 / 2),
        (lambda: torch.fft.fft2(meta(3, 64, 1024, dtype=torch.complex64)), 3 * 64 * 5 * 1024 * (10 + 6)),
    ],
)
def test_a_fourier_transform_has_five_n_log_n(step: Callable[[], Any], flops: float) -> None:
    shapes = [shape for shape in shapes_of(step, units=("vector",)) if shape.operation == "fft"]
    assert flops_of(shapes) == pytest.approx(flops)


def test_sorts_pass_over_their_keys_again_and_again() -> None:
    (long,) = shapes_of(lambda: torch.sort(meta(10**6)), units=("vector",))
    assert long == operation_shape("sort", "float32", rows=1, cols=10**6)
    # Four passes of 8 bits, each reads and writes a key of 4 bytes and its place of 8.
    assert float(batch_shapes([long]).bytes_moved[0]) == 4 * 2 * 12 * 10**6
    (chosen,) = shapes_of(lambda: torch.topk(meta(10, 5000), 3), units=("vector",))
    assert chosen == operation_shape("topk", "float32", rows=10, cols=5000)


def test_searches_and_distances_by_hand() -> None:
    (shape,) = shapes_of(lambda: torch.bucketize(meta(1000), meta(64)), units=("vector",))
    assert shape.dims == (4.0 * (1000 + 64), 8.0 * 1000, 1000.0 * math.log2(64))
    (shape,) = shapes_of(lambda: torch.cdist(meta(100, 7), meta(50, 7), p=1.0), units=("vector",))
    assert shape.dims[2] == 3 * 100 * 50 * 7


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_matmul_counts_stored_elements() -> None:
    indices = torch.tensor([[0, 1, 1, 999], [2, 0, 2, 5]])
    adjacency = torch.sparse_coo_tensor(indices, torch.ones(4), (1000, 2000)).coalesce()
    dense = torch.ones(2000, 8)
    trace = recorded(lambda: torch.sparse.mm(adjacency, dense))
    products = [
        shape
        for operation in trace.operations
        for shape in translate(operation, trace.flags)
        if shape.operation in ("sparse_product", "linear", "bmm")
    ]
    assert {product.operation for product in products} == {"sparse_product"}
    assert products[0].dims[2] == 2 * 4 * 8
    # Four values of 4 bytes, two indices of 8 bytes each; not 1000 x 2000 x 4 bytes.
    assert 4 * (4 + 2 * 8) + 2000 * 8 * 4 <= products[0].dims[0] < 10**6


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_compressed_matrix_counts_its_values_and_both_of_its_indices(tmp_path: Any) -> None:
    matrix = torch.eye(100).to_sparse_csr()
    trace = recorded(lambda: matrix @ torch.ones(100, 3))
    (stored,) = {
        (tensor.stored_elements, tensor.stored_bytes)
        for operation in trace.operations
        for tensor in operation.inputs
        if tensor.stored_bytes is not None
    }
    # 100 values of 4 bytes; 100 columns and 101 ends of rows of 8 bytes.
    assert stored == (100, 100 * 4 + 8 * (100 + 101))
    trace.save(str(tmp_path / "sparse.json"))
    assert lp.Trace.load(str(tmp_path / "sparse.json")).operations == trace.operations


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_gradients_and_their_updates_are_as_large_as_their_rows() -> None:
    table = torch.nn.Embedding(100_000, 16, sparse=True)
    trace = recorded(lambda: table(torch.tensor([1, 2, 3])).sum().backward())
    largest = max(tensor.size_bytes for one in trace.operations if one.phase == "backward" for tensor in one.outputs)
    # Three rows of 16 numbers of 4 bytes, and three places of 8.
    assert largest == 3 * (16 * 4 + 8)
    optimizer = torch.optim.SparseAdam(table.parameters())

    def step() -> None:
        optimizer.zero_grad()
        table(torch.tensor([1, 2, 3])).sum().backward()
        optimizer.step()

    trace = lp.capture(step, warmup_steps=1)
    moved = [
        float(batch_shapes([shape]).bytes_moved[0])
        for operation in trace.operations
        if operation.phase == "optimizer"
        for shape in translate(operation, trace.flags)
    ]
    assert max(moved) < 10_000  # the table has 6.4 MB
