"""Every argument of the callbacks is documented in a how-to, and every option of the command line in some page."""

import inspect
import re
from pathlib import Path

import pytest

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from lightning_predict.cli.parsing import COMMANDS, option_names
from lightning_predict.machine_profile import TABLE_KEYS, TOP_KEYS
from lightning_predict.observe.meters import BudgetArguments

DOCS = Path(__file__).parents[2] / "docs"
HOWTOS = "\n".join(path.read_text(encoding="utf-8") for path in sorted((DOCS / "howto").glob("*.md")))
PAGES = "\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md")))


def is_documented(name: str, text: str) -> bool:
    """Whether the text names an argument, as `name`, `name=...` or name=... within code, or an option as a word."""
    if name.startswith("--"):
        return re.search(rf"{name}(?![\w-])", text) is not None
    return re.search(rf"(?<![\w-]){name}=|`{name}`", text) is not None


def arguments(callback: type) -> list[str]:
    names = [name for name in inspect.signature(callback).parameters if name not in ("self", "limits")]
    return names + (list(BudgetArguments.__annotations__) if callback is CostBudget else [])


@pytest.mark.parametrize("name", arguments(RuntimePredictor) + arguments(CostBudget))
def test_each_argument_is_documented_in_a_how_to(name: str) -> None:
    assert is_documented(name, HOWTOS)


@pytest.mark.parametrize(("command", "option"), [(name, flag) for name in COMMANDS for flag in option_names(name)])
def test_each_option_is_documented(command: str, option: str) -> None:
    assert is_documented(option, PAGES)


@pytest.mark.parametrize("key", sorted(TOP_KEYS.union(*TABLE_KEYS.values())))
def test_key_of_profile_is_documented(key: str) -> None:
    assert is_documented(key, HOWTOS)


def test_a_longer_option_does_not_tell_of_a_shorter_one() -> None:
    assert not is_documented("--usd", "--usd-per-hour 2")
    assert not is_documented("gpus", "my_gpus = 1, num_gpus=1")
