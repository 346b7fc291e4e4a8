"""Tables looked up together, and the dot interaction in one kernel."""

import pytest
import torch
from torch import nn

import lightning_predict as lp
from benchmarks.accuracy.workloads.dlrm import DENSE, WIDTH, CriteoDlrm
from lightning_predict.advice.changes import CHANGES
from lightning_predict.advice.embedding import with_fused_tables
from lightning_predict.kernels.families.embedding import INTERACTION, LOOK_UPS, UPDATES
from lightning_predict.kernels.translation import work_items
from lightning_predict.record.trace import Trace

BATCH = 2048
ROWS = (1000, 30, 500_000)
VECTORS = len(ROWS) + 1


@pytest.fixture(scope="module", params=[None, "16-mixed"])
def step(request: pytest.FixtureRequest) -> Trace:
    with torch.device("meta"):
        model, dense, labels = CriteoDlrm(ROWS), torch.empty(BATCH, DENSE), torch.empty(BATCH)
        indices = torch.zeros(len(ROWS), BATCH, 1, dtype=torch.int64)

    def train() -> None:
        model.zero_grad(set_to_none=True)
        nn.functional.binary_cross_entropy_with_logits(model(dense, indices).float(), labels).backward()

    return lp.capture(train, samples_per_step=BATCH, precision=request.param)


def test_tables_and_interaction_become_one_call_per_pass(step: Trace) -> None:
    fused = with_fused_tables(step)
    names = [operation.name for operation in fused.operations]
    for name in (LOOK_UPS, UPDATES, INTERACTION, f"{INTERACTION}_backward"):
        assert names.count(name) == 1
    assert (
        names.index(LOOK_UPS) < names.index(INTERACTION) < names.index(f"{INTERACTION}_backward") < names.index(UPDATES)
    )
    assert not {"aten::bmm", "aten::stack", "aten::_embedding_bag", "aten::_embedding_bag_backward"} & set(names)
    # The perceptrons stay as they are.
    for name in ("aten::addmm", "aten::mm", "aten::threshold_backward"):
        assert names.count(name) == [operation.name for operation in step.operations].count(name)


def test_interaction_reads_vectors_once_and_writes_the_input_of_the_top_layers(step: Trace) -> None:
    shapes = {
        fused.operations[item.operations[0]].name: item.shapes
        for fused in [with_fused_tables(step)]
        for item in work_items(fused)
    }
    is_short = any(operation.name == "aten::_to_copy" for operation in step.operations)
    size = 2 if is_short else 4
    vectors = BATCH * VECTORS * WIDTH * size
    result = BATCH * (WIDTH + VECTORS * (VECTORS - 1) // 2 + 1) * size
    flops = 0 if is_short else 2 * BATCH * VECTORS**2 * WIDTH
    assert [shape.dims for shape in shapes[INTERACTION]] == [(vectors, result, flops)]
    backward = [shape.dims for shape in shapes[f"{INTERACTION}_backward"]]
    assert backward == [(vectors + result, vectors, 2 * flops)]
    assert [shape.dims[2] for shape in shapes[LOOK_UPS]] == list(ROWS)
    assert [shape.dims[:4] for shape in shapes[UPDATES]] == [(BATCH, 1, rows, WIDTH) for rows in reversed(ROWS)]


def test_fused_tables_are_faster_and_need_several_tables(step: Trace) -> None:
    separate, fused = (
        lp.predict(trace, ["V100-SXM2-32GB"], history=False)["V100-SXM2-32GB"].device_seconds
        for trace in (step, with_fused_tables(step))
    )
    assert fused < separate
    assert CHANGES["fused_tables"].why_not(step, None) is None
    with torch.device("meta"):
        model, data = nn.Linear(8, 8), torch.empty(4, 8)
    plain = lp.capture(lambda: model(data).sum().backward())
    assert CHANGES["fused_tables"].why_not(plain, None) == "the step looks up less than two embedding bags"
