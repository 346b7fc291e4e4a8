"""Where a step's time goes, by folded module."""

import pytest

import lightning_predict as lp
from lightning_predict.advice.layers import layer_table, module_kind
from lightning_predict.hardware import gpu
from tests.advice.example_steps import WIDTH, trained

GPUS = [gpu("L4"), gpu("A100-SXM-80GB")]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("transformer.h.3.mlp.c_fc", "transformer.h.*.mlp"),
        ("blocks.11.attn", "blocks.*.attn"),
        ("0.first", "*.first"),
        ("stages.1.blocks.2.conv.1.norm", "stages.*.blocks.*.conv"),
        ("layer1.0.conv2", "layer1.*.conv2"),
        ("head", "head"),
        ("model.head.norm.inner", "model.head"),
        (None, "outside modules"),
        ("", "outside modules"),
    ],
)
def test_members_of_module_lists_are_merged(module: str | None, name: str) -> None:
    assert module_kind(module) == name


def test_rows_add_up_to_the_device_time_with_the_optimizer() -> None:
    trace = trained()
    table = layer_table(trace, GPUS, None)
    modules = {row.module: row for row in table.rows}
    for place, name in enumerate(("L4", "A100-SXM-80GB")):
        (prediction,) = lp.predict(trace, [name], history=False).values()
        assert sum(row.seconds[place] for row in table.rows) == pytest.approx(prediction.device_seconds)
    # Both layers have two products of the same size in each pass and as many parameters.
    assert "optimizer" not in modules
    first, second = (modules[f"*.{name}"].seconds[0] for name in ("first", "second"))
    assert first == pytest.approx(second, rel=0.25)
    products = 2 * 3 * 2 * 512 * WIDTH**2 / 30.3e12  # two blocks, three passes, at the L4's peak in float32
    update = 2 * 28 * WIDTH**2 / 300e9  # parameters, gradients and two moments, read and (less one) written
    assert first >= products + 0.5 * update


def test_unfused_gelu_is_named() -> None:
    table = layer_table(trained(), GPUS, None)
    (named,) = [row for row in table.rows if row.pattern is not None]
    assert (named.module, named.pattern) == ("*", "GELU written out: F.gelu is one kernel")
    assert str(table).startswith("Where it goes")


def test_step_with_kernels_has_their_times_and_no_unfused_pattern() -> None:
    trace, names = trained(), ["L4", "P100"]  # a P100 runs no compiled kernels
    table = layer_table(trace, [gpu(name) for name in names], None, kernels=("compile",))
    predictions = lp.predict(trace, names, history=False, kernels="compile")
    for place, name in enumerate(names):
        device = sum(row.seconds[place] for row in table.rows)
        assert device == pytest.approx(predictions[name].device_seconds, rel=0.02)  # kernels of microseconds wait
    assert not any(row.pattern for row in table.rows)


def test_changed_step_has_its_own_column() -> None:
    table = layer_table(trained(), GPUS[:1], None, after=trained(1024))
    assert table.columns == ("L4", "L4, changed")
    assert sum(row.seconds[1] for row in table.rows) > sum(row.seconds[0] for row in table.rows)
    assert table.as_dict()["rows"][0]["module"] == table.rows[0].module
