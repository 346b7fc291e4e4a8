"""The core works without its extensions, and each registered name is where the registry says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_predict import extensions
from lightning_predict.distributed.strategy import parse_strategy

ROOT = Path(__file__).parents[1]

LOADED = """
import sys
{}
parts = {{name.split(".")[2] for name in sys.modules if name.startswith("lightning_predict.extensions.")}}
print(*sorted(parts))
"""

PREDICT = "import lightning_predict as lp; trace = lp.Trace.load('examples/gpt2.json.gz'); lp.predict(trace, {}, {})"


def loaded_by(code: str) -> list[str]:
    """The extensions that a new process loads."""
    ran = subprocess.run(
        [sys.executable, "-c", LOADED.format(code)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return ran.stdout.split()


@pytest.mark.parametrize("name", extensions.REGISTERED)
def test_each_registered_name_is_where_it_is_registered(name: str) -> None:
    assert extensions.extension(name).__module__ == f"lightning_predict.extensions.{extensions.REGISTERED[name]}"


def test_each_name_that_the_core_asks_for_is_registered() -> None:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "lightning_predict").rglob("*.py"))
    asked = {name for text in texts for name in re.findall(r"""extension\(\s*"(\w+)""", text)}
    assert len(asked) > 15
    assert asked <= set(extensions.REGISTERED)


@pytest.mark.parametrize("name", extensions.COMMANDS)
def test_each_registered_command_is_where_it_is_registered(name: str) -> None:
    assert extensions.command(name).__module__ == f"lightning_predict.extensions.{extensions.COMMANDS[name]}"


@pytest.mark.parametrize(
    "code",
    [
        "from lightning_predict.callbacks import CostBudget, RuntimePredictor",
        PREDICT.format("['T4', '8xL4']", "iterations=1000, history=False"),
        PREDICT.format("['8xL4']", "strategy='fsdp', history=False"),
    ],
)
def test_the_core_loads_no_extension(code: str) -> None:
    assert loaded_by(code) == []


def test_a_strategy_loads_the_extension_that_it_needs() -> None:
    assert loaded_by(PREDICT.format("['4xL4']", "strategy='tensor=4', history=False")) == ["parallel"]


def test_words_of_ours_are_never_read_as_arguments_of_others() -> None:
    """Megatron and NeMo have an option of the same name, without an overlap of gradients."""
    assert parse_strategy("accumulate=4").name == "ddp,accumulate=4"
    assert parse_strategy("accumulate=4 tensor_model_parallel_size=8").name == (
        "ddp,tensor=8,overlap_grad_reduce=false,accumulate=4"
    )
