"""The callback that the environment asks for, through the entry points that Lightning reads."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.callbacks import CostBudget, RuntimePredictor
from lightning_predict.registration import callbacks_from_environment
from tests.processes import run

GROUPS = {
    "lightning.pytorch": "lightning.pytorch.callbacks_factory",
    "pytorch_lightning": "pytorch_lightning.callbacks_factory",
}

SCRIPT = """
import sys
from pathlib import Path
from tests.callbacks.small import Small

small = Small(sys.argv[1])
trainer = small.trainer(Path(sys.argv[2]), max_epochs=1)
trainer.fit(small.model(), small.loader(8))
print("callbacks:", [type(callback).__name__ for callback in trainer.callbacks])
"""


@pytest.fixture(autouse=True)
def _no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "_GPUS", "_USD", "_USD_PER_HOUR", "_SEEN"):
        monkeypatch.delenv(f"LIGHTNING_PREDICT{name}", raising=False)


@pytest.mark.parametrize("group", GROUPS.values())
def test_the_factory_is_registered_for_both_packages(group: str) -> None:
    (entry,) = [entry for entry in entry_points(group=group) if entry.name == "lightning-predict"]
    assert entry.load() is callbacks_from_environment


@pytest.mark.parametrize("switch", [None, "", "0", " "])
def test_nothing_is_added_unless_asked_for(monkeypatch: pytest.MonkeyPatch, switch: str | None) -> None:
    if switch is not None:
        monkeypatch.setenv("LIGHTNING_PREDICT", switch)
    assert callbacks_from_environment() == []


def test_the_switch_and_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_PREDICT", "1")
    (callback,) = callbacks_from_environment()
    assert isinstance(callback, RuntimePredictor)
    assert callback.gpus == "all"
    monkeypatch.setenv("LIGHTNING_PREDICT_GPUS", " Tesla T4, L4 ,")
    (callback,) = callbacks_from_environment()
    assert isinstance(callback, RuntimePredictor)
    assert callback.gpus == ("T4", "L4")


def test_budget_is_added_to_one_of_the_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIGHTNING_PREDICT", "1")
    monkeypatch.setenv("LIGHTNING_PREDICT_USD", "5")
    monkeypatch.setenv("LIGHTNING_PREDICT_USD_PER_HOUR", "0.5")
    monkeypatch.setenv("LIGHTNING_PREDICT_SEEN", str(tmp_path / "seen"))
    _, budget = callbacks_from_environment()
    assert isinstance(budget, CostBudget)
    assert (budget.terms.limits["usd"], budget.terms.usd_per_hour) == (5.0, 0.5)
    assert (tmp_path / "seen").exists()
    assert budget.state_key != CostBudget(hours=1).state_key  # Lightning refuses two callbacks with one key
    monkeypatch.setenv("LIGHTNING_PREDICT_USD", "five")
    with pytest.raises(InvalidArgumentError, match="LIGHTNING_PREDICT_USD='five' is not an amount; set it to US doll"):
        callbacks_from_environment()


def test_misspelt_variable_gets_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_PREDICT", "yes")
    with pytest.raises(InvalidArgumentError, match="LIGHTNING_PREDICT='yes' is not known; set it to 1, or to 0"):
        callbacks_from_environment()
    monkeypatch.setenv("LIGHTNING_PREDICT", "1")
    monkeypatch.setenv("LIGHTNING_PREDICT_GPUS", "T4,T5")
    with pytest.raises(UnknownGpuError, match="LIGHTNING_PREDICT_GPUS: 'T5' is not a GPU"):
        callbacks_from_environment()


def test_failing_factory_does_not_fail_the_trainer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise MemoryError("injected")

    monkeypatch.setenv("LIGHTNING_PREDICT", "1")
    monkeypatch.setattr(RuntimePredictor, "__init__", fails)
    assert callbacks_from_environment() == []
    assert caplog.messages == ["LIGHTNING_PREDICT=1, but RuntimePredictor cannot be made: MemoryError: injected"]


@pytest.mark.parametrize("package", GROUPS)
def test_trainer_gets_the_callback_from_the_environment(package: str, tmp_path: Path) -> None:
    ran = run(SCRIPT, package, tmp_path, variables={"LIGHTNING_PREDICT": "1", "LIGHTNING_PREDICT_GPUS": "T4,L4"})
    assert ran.returncode == 0, ran.stderr
    rows = [line.split()[0] for line in ran.stdout.splitlines() if line.startswith(("T4 ", "L4 ", "this"))]
    assert rows == ["this", "T4", "L4"]
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_without_the_switch_has_no_callback_of_ours(tmp_path: Path) -> None:
    ran = run(SCRIPT, "lightning.pytorch", tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "RuntimePredictor" not in ran.stdout + ran.stderr
    assert list(tmp_path.iterdir()) == []
