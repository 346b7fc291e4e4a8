"""Both callbacks from the YAML and the command line of LightningCLI, which knows them by their annotations alone."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from lightning_predict.callbacks.lightning_packages import PACKAGES
from tests.callbacks.small import Small

CONFIGURATION = """
trainer:
  accelerator: cpu
  max_epochs: 1
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  callbacks:
    - class_path: lightning_predict.callbacks.RuntimePredictor
      init_args:
        gpus: [T4, L4]
        warmup_steps: 2
        usd_per_hour: {T4: 0.5}
    - class_path: lightning_predict.callbacks.CostBudget
      init_args:
        usd: 50
        usd_per_hour: 1.5
        deadline: 2999-01-01T12:00
        on_exceed: warn
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, list[str]], Any]:
    """Runs a LightningCLI with a command line; the model and the data are the tests' own."""

    def command(package: str, arguments: list[str]) -> Any:
        small = Small(package)

        class Model(type(small.model())):  # type: ignore[misc]
            pass

        class Data(small.lightning.LightningDataModule):  # type: ignore[misc,name-defined]
            def train_dataloader(self) -> torch.utils.data.DataLoader[Tensor]:
                return small.loader(8)

        # LightningCLI 2.6 calls what jsonargparse 4.53 has renamed.
        monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
        monkeypatch.setattr("sys.argv", ["train.py", *arguments, f"--trainer.default_root_dir={tmp_path}"])
        return import_module(f"{package}.cli").LightningCLI(
            Model, Data, save_config_callback=None, seed_everything_default=False
        )

    return command


Run = Callable[[str, list[str]], Any]


def ours(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callbacks if isinstance(callback, (RuntimePredictor, CostBudget))]


@pytest.mark.parametrize("package", PACKAGES)
def test_from_yaml(run: Run, package: str, tmp_path: Path) -> None:
    path = tmp_path / "fit.yaml"
    path.write_text(CONFIGURATION)
    predictor, budget = ours(run(package, ["fit", f"--config={path}"]).trainer)
    assert predictor.gpus == ("T4", "L4")
    assert predictor.warmup_steps == 2
    assert predictor.usd_per_hour == {"T4": 0.5}
    assert predictor.predictions is not None
    assert predictor.predictions["T4"].usd_per_hour == 0.5
    assert (budget.terms.limits["usd"], budget.terms.usd_per_hour, budget.on_exceed) == (50, 1.5, "warn")
    assert budget.terms.deadline.year == 2999


@pytest.mark.parametrize("package", PACKAGES)
def test_from_the_command_line(run: Run, package: str) -> None:
    arguments = [
        "fit",
        "--trainer.accelerator=cpu",
        "--trainer.max_epochs=1",
        "--trainer.logger=false",
        "--trainer.enable_checkpointing=false",
        "--trainer.enable_progress_bar=false",
        "--trainer.callbacks+=lightning_predict.callbacks.RuntimePredictor",
        "--trainer.callbacks.gpus=[T4,L4]",
        "--trainer.callbacks+=lightning_predict.callbacks.CostBudget",
        "--trainer.callbacks.hours=2",
    ]
    predictor, budget = ours(run(package, arguments).trainer)
    assert list(predictor.predictions) == ["T4", "L4"]
    assert budget.terms.limits["hours"] == 2


def test_help_names_the_arguments(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("lightning.pytorch", ["fit", "--trainer.callbacks.help=lightning_predict.callbacks.CostBudget"])
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert "--trainer.callbacks.usd" in printed
    assert "{stop,warn,raise}" in printed


def test_a_wrong_name_is_refused_before_anything_runs(run: Run) -> None:
    arguments = [
        "fit",
        "--trainer.callbacks+=lightning_predict.callbacks.RuntimePredictor",
        "--trainer.callbacks.gpus=[T5]",
    ]
    with pytest.raises(ValueError, match=r"'T5' is not a GPU of the catalogue. The nearest names are T4"):
        run("lightning.pytorch", arguments)
