"""Steps on the meta device that depend on values: recorded with stated assumptions, as on the CPU with such values."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import lightning_predict as lp
from lightning_predict.base.errors import CaptureError
from lightning_predict.record.trace import Trace

_CHECKS = "checks of values pass"
_MASKS = "masks are all true"
_SIZES = "upper bounds"
_NUMBERS = "numbers read from them are 1"


Step = Callable[[], object]


def _guarded(check: Callable[[Tensor], bool]) -> Callable[[Tensor, Tensor], Step]:
    """Make a step that rejects unusual values of its data, as detectors and loops do."""

    def make(data: Tensor, _mask: Tensor) -> Step:
        def step() -> None:
            if check(data):
                raise ValueError("unusual values")
            data.exp().sum().backward()

        return step

    return make


def _unpadded(data: Tensor, mask: Tensor) -> Step:
    """Select the tokens of a padded batch, with the lengths that the mask gives."""
    batch, lengths = data.detach().view(2, 3, 4).requires_grad_(), mask.long().view(2, 3)

    def step() -> None:
        longest = int(lengths.sum(-1).max().item())
        tokens = batch.flatten(0, 1)[lengths.flatten().nonzero().flatten()]
        tokens.view(2, longest, 4).sum().backward()

    return step


def _mask_skipped(data: Tensor, mask: Tensor) -> Step:
    """Skip a padding mask of ones, as transformers does before attention."""
    padding = mask.long()

    def step() -> None:
        result = data.exp()
        if not padding.to(torch.bool).all():
            result = result * padding[:, None]
        result.sum().backward()

    return step


def _logged(read: Callable[[Tensor], object]) -> Callable[[Tensor, Tensor], Step]:
    def make(data: Tensor, _mask: Tensor) -> Step:
        def step() -> None:
            loss = data.exp().sum()
            loss.backward()
            assert read(loss.detach()) is not None

        return step

    return make


def _lines(trace: Trace) -> list[object]:
    """Names, shapes and dtypes; copies between devices have the same name on both devices."""
    return [
        (one.name, one.phase, [(t.shape, t.dtype) for t in one.inputs], [(t.shape, t.dtype) for t in one.outputs])
        for one in trace.operations
        if one.name not in ("aten::_to_copy", "aten::_local_scalar_dense")  # a check of NaN may read once or twice
    ]


@pytest.mark.parametrize(
    ("make", "assumed"),
    [
        (lambda data, mask: lambda: data[mask].sum().backward(), _SIZES),
        (lambda data, mask: lambda: data.masked_select(mask[:, None]).sum().backward(), _SIZES),
        (lambda data, mask: lambda: data[torch.where(mask)[0]].sum().backward(), _SIZES),
        (lambda data, mask: lambda: data[torch.unique(mask.long())].sum().backward(), _SIZES),
        (_unpadded, _SIZES),
        (_mask_skipped, _MASKS),
        (_guarded(lambda data: bool(torch.isnan(data.sum()) or not torch.isfinite(data.sum()))), _CHECKS),
        (_guarded(lambda data: bool((data[:, 2:] <= data[:, :2] - 1).any())), _CHECKS),  # a box without an area
        (_logged(lambda loss: loss.item()), _NUMBERS),
        (_logged(lambda loss: loss.cpu().numpy().shape), _NUMBERS),
    ],
    ids=["index", "masked_select", "where", "unique", "unpad", "skip", "nan", "boxes", "item", "numpy"],
)
@pytest.mark.parametrize("warmup_steps", [0, 1])
def test_meta_step_that_reads_values_equals_the_cpu_step(
    make: Callable[[Tensor, Tensor], Step], assumed: str, warmup_steps: int
) -> None:
    traces = []
    for device in ("meta", "cpu"):
        data, mask = torch.ones(6, 4, device=device, requires_grad=True), torch.ones(6, dtype=torch.bool, device=device)
        traces.append(lp.capture(make(data, mask), warmup_steps=warmup_steps))
    on_meta, on_cpu = traces
    assert on_meta.device == "meta"
    assert _lines(on_meta) == _lines(on_cpu)
    (note,) = (note for note in on_meta.notes if assumed in note)
    assert "test_assumed_values.py:" in note
    assert not on_cpu.notes


def _ctc(device: str) -> Callable[[], object]:
    scores = torch.ones(9, 2, 5, device=device, requires_grad=True)
    targets = torch.ones(2, 3, dtype=torch.long, device=device)
    return lambda: functional.ctc_loss(scores, targets, torch.full((2,), 9), torch.tensor([3, 2])).backward()


def test_ctc_loss_on_meta_has_the_shapes_of_the_cpu() -> None:
    shapes = []
    for device in ("meta", "cpu"):
        trace = lp.capture(_ctc(device))
        ctc = [operation for operation in trace.operations if "ctc" in operation.name]
        shapes.append([(one.name, one.phase, [tensor.shape for tensor in one.outputs]) for one in ctc])
    assert shapes[0] == shapes[1]
    assert shapes[0][0][2] == [(2,), (2, 9, 7)]  # 2 x 3 labels + 1 states


def _rows_selected(make_mask: Callable[[Tensor], Tensor]) -> int:
    with torch.device("meta"):
        data = torch.empty(100, 4, requires_grad=True)
    trace = lp.capture(lambda: data[make_mask(data)].sum().backward())
    return next(operation for operation in trace.operations if operation.name == "aten::index").outputs[0].shape[0]


def _few(data: Tensor, count: int) -> Tensor:
    mask = torch.zeros(100, dtype=torch.uint8, device=data.device)
    mask[torch.randperm(100, device=data.device)[:count]] = 1
    return mask


@pytest.mark.parametrize(
    ("make_mask", "rows"),
    [
        (lambda data: data[:, 0] > 0, 100),
        (lambda data: torch.where(_few(data, 7))[0], 7),
        (lambda data: torch.where(_few(data, 7) | _few(data, 5))[0], 12),
        (lambda data: torch.where(_few(data, 7) & _few(data, 5))[0], 5),
        (lambda data: torch.where(torch.zeros(100, device=data.device))[0], 0),
        # 60 rows of one kind and 40 of another: two kinds, so half of the rows each.
        (lambda data: _kinds(data) == torch.unique(_kinds(data))[0], 50),
    ],
)
def test_size_bound_follows_from_earlier_operations(make_mask: Callable[[Tensor], Tensor], rows: int) -> None:
    assert _rows_selected(make_mask) == rows


def _kinds(data: Tensor) -> Tensor:
    return torch.cat([torch.full((60,), 1, device=data.device), torch.full((40,), 2, device=data.device)])


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda index: index.max().item(), r"`.*` \(test_assumed_values\.py, line \d+, in .*\) reads values"),
        (lambda index: index.tolist(), "reads values of a tensor"),
        (lambda index: functional.one_hot(index), "reads values of a tensor"),
        (lambda index: torch.bincount(index), "does not have on the meta device"),
    ],
)
def test_unknown_integer_is_rejected(read: Callable[[Tensor], object], said: str) -> None:
    with torch.device("meta"):
        layer, data, index = nn.Linear(4, 4), torch.empty(2, 4), torch.zeros(2, dtype=torch.long)

    def step() -> None:
        layer(data).sum().backward()
        read(index)

    with pytest.raises(CaptureError, match=said) as caught:
        lp.capture(step)
    assert "CPU" in str(caught.value)


def test_sparse_products_and_errors_after_assumptions_are_named() -> None:
    # The transpose of a sparse meta tensor has no stored elements, so that its product would be free.
    with torch.device("meta"):
        places, values = torch.zeros(2, 5, dtype=torch.long), torch.empty(5)
        weight = torch.empty(10, 4, requires_grad=True)

    def step() -> None:
        matrix = torch.sparse_coo_tensor(places, values, (10, 10), check_invariants=False)
        torch.sparse.mm(matrix, weight).sum().backward()

    with pytest.raises(CaptureError, match="does not have on the meta device"):
        lp.capture(step)
    with torch.device("meta"):
        data, mask = torch.empty(6, 4, requires_grad=True), torch.zeros(6, dtype=torch.bool)

    def failing() -> None:
        if data[mask].shape[0] != 2:
            raise ValueError("expected two rows")
        data.sum().backward()

    with pytest.raises(CaptureError, match=r"raised ValueError: expected two rows .* upper bounds") as caught:
        lp.capture(failing)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("text", ["a meta tensor", "the Meta device"])
def test_error_of_the_step_is_unchanged(text: str) -> None:
    def step() -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match=text):
        lp.capture(step)


def test_autocast_applies_to_steps_that_read_values() -> None:
    with torch.device("meta"):
        layer, data, mask = nn.Linear(4, 4), torch.empty(6, 4), torch.zeros(6, dtype=torch.bool)
    trace = lp.capture(lambda: layer(data)[mask].float().sum().backward(), precision="bf16-mixed")
    product = next(operation for operation in trace.operations if operation.name == "aten::addmm")
    assert {tensor.dtype for tensor in product.inputs} == {"bfloat16"}


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_mask_share_sets_the_true_elements(share: float) -> None:
    """A masked language model multiplies a quarter of its tokens with the vocabulary."""
    with torch.device("meta"):
        head, hidden = nn.Linear(8, 50), torch.empty(4, 16, 8)
        labels, mask = torch.zeros((4, 16), dtype=torch.long), torch.ones((4, 16), dtype=torch.bool)

    def step() -> None:
        chosen = labels != -100
        functional.cross_entropy(head(hidden[chosen]), labels[mask]).backward()
        assert int(mask.sum()) == 64 * share
        assert bool(mask.all()) is (share == 1)

    trace = lp.capture(step, mask_share=share)
    rows = {operation.inputs[1].shape[0] for operation in trace.operations if operation.name == "aten::addmm"}
    assert rows == {64 * share}
    assert any(f"masks are true in {share:.3g} of their elements" in note for note in trace.notes) is (share < 1)


@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_invalid_mask_share_is_rejected(share: float) -> None:
    with pytest.raises(lp.LightningPredictError, match="expected a share above 0 and at most 1"):
        lp.capture(lambda: None, mask_share=share)
