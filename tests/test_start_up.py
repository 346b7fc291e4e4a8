"""Parts that few users need are loaded only by what needs them."""

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_predict.layouts.strategy import parse_strategy

ROOT = Path(__file__).parents[1]

LOADED = """
import sys
{}
parts = {{".".join(name.split(".")[1:2]) for name in sys.modules if name.startswith("lightning_predict.")}}
print(*sorted(parts & set("advice embeddings layout_search own_weights planning regression".split())))
"""

PREDICT = "import lightning_predict as lp; trace = lp.Trace.load('examples/gpt2.json.gz'); lp.predict(trace, {}, {})"


def loaded_by(code: str) -> list[str]:
    """Parts for few users that a new process loads."""
    ran = subprocess.run(
        [sys.executable, "-c", LOADED.format(code)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return ran.stdout.split()


@pytest.mark.parametrize(
    "code",
    [
        "from lightning_predict.callbacks import CostBudget, RuntimePredictor",
        PREDICT.format("['T4', '8xL4']", "iterations=1000, history=False"),
        PREDICT.format("['8xL4']", "strategy='fsdp', history=False"),
    ],
)
def test_a_prediction_loads_no_part_for_few_users(code: str) -> None:
    assert loaded_by(code) == []


def test_own_options_are_not_read_as_megatron_arguments() -> None:
    """Megatron and NeMo have an option of the same name, without an overlap of gradients."""
    assert parse_strategy("accumulate=4").name == "ddp,accumulate=4"
    assert parse_strategy("accumulate=4 tensor_model_parallel_size=8").name == (
        "ddp,tensor=8,overlap_grad_reduce=false,accumulate=4"
    )
