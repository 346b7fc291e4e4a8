"""Parameters, memory, switches and compiled code around a step."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from lightning_predict.record.environment import (
    Compilations,
    autograd_nodes,
    compilations,
    describe_leaves,
    describe_parameters,
    has_fast_evaluation,
    measure_memory,
    read_flags,
    software_versions,
)
from lightning_predict.record.trace import Flags, Memory, Parameter
from tests.processes import run


@pytest.fixture
def model() -> nn.Sequential:
    """Linear(8, 4) and a batch norm: 36 + 8 parameters and 4 + 4 + 1 buffers."""
    return nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))


def test_parameters_are_described_once_in_order_with_leaves_by_number(model: nn.Sequential) -> None:
    model[0].weight.requires_grad_(False)
    assert describe_parameters([model]) == (
        Parameter(name="0.weight", shape=(4, 8), dtype="float32", requires_grad=False),
        Parameter(name="0.bias", shape=(4,), dtype="float32"),
        Parameter(name="1.weight", shape=(4,), dtype="float32"),
        Parameter(name="1.bias", shape=(4,), dtype="float32"),
    )
    first = nn.Linear(2, 2, bias=False)
    second = nn.Sequential(first, nn.Linear(2, 1, bias=False))
    assert [parameter.name for parameter in describe_parameters([first, second])] == [
        "Linear.weight",
        "Sequential.1.weight",
    ]
    leaves = [torch.zeros(2, requires_grad=True), torch.zeros(3, dtype=torch.bfloat16)]
    assert describe_leaves(leaves) == (
        Parameter(name="parameter_0", shape=(2,), dtype="float32"),
        Parameter(name="parameter_1", shape=(3,), dtype="bfloat16", requires_grad=False),
    )


def test_memory_has_parameters_gradients_and_state(model: nn.Sequential) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    memory = measure_memory([model], [], [optimizer], has_backward=True)
    # 44 parameters of 4 bytes; buffers: 8 floats and one int64. Adam: two moments, and a step count of 4 bytes each.
    assert memory == Memory(
        parameter_bytes=44 * 4 + 8 * 4 + 8, gradient_bytes=44 * 4, optimizer_state_bytes=2 * 44 * 4 + 4 * 4
    )


def test_freed_gradients_and_leaves_without_a_model_count(model: nn.Sequential) -> None:
    model[0].bias.requires_grad_(False)
    memory = measure_memory([model], [], [], has_backward=True, peak_bytes=7)
    assert (memory.gradient_bytes, memory.peak_bytes) == ((44 - 4) * 4, 7)
    assert measure_memory([model], [], [], has_backward=False).gradient_bytes == 0
    leaf = torch.zeros(10, requires_grad=True)
    assert measure_memory([], [leaf], [], has_backward=False).parameter_bytes == 40
    assert measure_memory([], [], [], has_backward=True) == Memory()


@pytest.fixture
def precision() -> Iterator[None]:
    """Puts the precision switches back."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.cudnn.benchmark = False


@pytest.mark.usefixtures("precision")
def test_tf32_flag_is_read_from_old_and_new_switch() -> None:
    assert read_flags(None) == Flags()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    assert read_flags("bfloat16") == Flags(matmul_tf32=True, cudnn_benchmark=True, autocast_dtype="bfloat16")
    torch.set_float32_matmul_precision("highest")
    assert not read_flags(None).matmul_tf32
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # from now on torch refuses to read the older switch
    assert read_flags(None).matmul_tf32


def test_software_has_the_versions_of_torch_and_rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software_versions()["torch"] == torch.__version__
    assert "rocm" not in software_versions()
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    assert software_versions()["rocm"] == "6.4.43482"


@pytest.mark.parametrize(
    ("layer", "training", "expected"),
    [
        (nn.TransformerEncoderLayer(8, 2, batch_first=True), False, True),
        (nn.TransformerEncoderLayer(8, 2, batch_first=True), True, False),
        (nn.MultiheadAttention(8, 2), False, True),
        (nn.Linear(8, 2), False, False),
    ],
)
def test_fused_path_of_evaluation_is_detected(layer: nn.Module, training: bool, expected: bool) -> None:
    assert has_fast_evaluation(nn.Sequential(layer).train(training)) is expected
    assert has_fast_evaluation(None) is False


COMPILED = """
import warnings
import torch
from torch import nn
from lightning_predict.record.environment import has_compiled_code

warnings.simplefilter("error")
plain = nn.Linear(2, 2)
torch.optim.AdamW(plain.parameters()).zero_grad()   # loads the compiler without compiling
assert not has_compiled_code(plain) and not has_compiled_code(None)

whole = torch.compile(plain, backend="eager")
assert has_compiled_code(whole) and has_compiled_code(None)
del whole

plain.compile(backend="eager")
assert has_compiled_code(nn.Sequential(plain)) and has_compiled_code(None)
del plain

function = torch.compile(torch.nn.functional.relu, backend="eager")
assert has_compiled_code(None)
other = nn.Linear(2, 2)
assert not has_compiled_code(other)
function(torch.zeros(2))                            # now something was compiled: any step may use it
assert has_compiled_code(other)
"""


@pytest.mark.parametrize(
    ("utilities", "seconds"),
    [
        (SimpleNamespace(calculate_time_spent=lambda: {"code_gen": 51.4, "total_wall_time": 54.6}), 54.6),
        (SimpleNamespace(calculate_time_spent=dict), None),  # nothing was compiled
        (SimpleNamespace(), None),  # another release of torch
        (None, None),  # the compiler was never loaded
    ],
)
def test_compile_time_is_read_from_the_compiler(
    utilities: ModuleType | None, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utilities)
    assert compilations().seconds_since(Compilations()) == seconds


def test_compiled_code_is_found_by_objects_and_counters() -> None:
    ran = run(COMPILED)
    assert ran.returncode == 0, ran.stderr


def test_compilations_are_counted_since_an_earlier_state() -> None:
    before = Compilations(frames=3, seconds=10.0)
    after = Compilations(frames=5, seconds=12.5)
    assert (after.frames_since(before), after.seconds_since(before)) == (2, 2.5)
    assert (before.frames_since(before), before.seconds_since(before)) == (0, None)
    # The compiler was reset in between, and has compiled two since.
    assert Compilations(frames=2, seconds=1.0).frames_since(before) == 2
    assert Compilations(frames=2, seconds=1.0).seconds_since(before) == 1.0


def test_equal_work_creates_equally_many_autograd_nodes() -> None:
    weight = torch.ones(2, requires_grad=True)
    counts = []
    for powers in (1, 1, 2):
        before = autograd_nodes()
        for _ in range(powers):
            weight.square().sum().backward()
        counts.append(autograd_nodes() - before)
    # A square and a sum.
    assert counts == [2, 2, 4]
