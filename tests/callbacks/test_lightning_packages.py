import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_predict.base.errors import MissingDependencyError
from lightning_predict.callbacks import CostBudget, RuntimePredictor, lightning_packages
from lightning_predict.callbacks.lightning_packages import PACKAGES, LightningPredictWarning, samples_of, warn
from tests.callbacks.small import Small
from tests.processes import run

CALLBACKS: list[Callable[[], Any]] = [lambda: RuntimePredictor(["T4"]), lambda: CostBudget(usd=1)]


@pytest.mark.parametrize("make", CALLBACKS)
@pytest.mark.parametrize("package", PACKAGES)
def test_it_is_a_callback_of_either_package(make: Callable[[], Any], package: str) -> None:
    assert isinstance(make(), import_module(package).Callback)


@pytest.mark.parametrize("make", CALLBACKS)
def test_either_trainer_takes_it_alone_and_in_a_list(make: Callable[[], Any], small: Small, tmp_path: Path) -> None:
    for callbacks in (make(), [make()]):
        trainer = small.trainer(tmp_path, callbacks=callbacks)
        assert any(type(callback).__module__.startswith("lightning_predict") for callback in trainer.callbacks)


def test_two_budgets_of_one_kind_are_refused_by_the_trainer(small: Small, tmp_path: Path) -> None:
    small.trainer(tmp_path, callbacks=[CostBudget(usd=1), CostBudget(hours=1)])
    with pytest.raises(RuntimeError, match="more than one stateful callback of type `CostBudget`"):
        small.trainer(tmp_path, callbacks=[CostBudget(hours=1), CostBudget(hours=2)])


WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

for name in list(sys.modules):
    if name.partition(".")[0] in ({blocked!r}, "lightning_predict"):
        del sys.modules[name]
sys.meta_path.insert(0, Blocked())
from lightning_predict.callbacks import RuntimePredictor
print([base.__module__ for base in RuntimePredictor.__mro__ if base.__name__ == "Callback"])
"""


@pytest.mark.parametrize(
    ("blocked", "module"),
    [
        ("pytorch_lightning", "lightning.pytorch.callbacks.callback"),
        ("lightning", "pytorch_lightning.callbacks.callback"),
    ],
)
def test_one_package_is_enough(blocked: str, module: str) -> None:
    ran = run(WITHOUT.format(blocked=blocked))
    assert ran.stdout == f"['lightning_predict.callbacks.lightning_packages', '{module}']\n", ran.stderr


WITHOUT_THE_OTHER = """
import sys
from copy import deepcopy

other = sys.modules.pop("pytorch_lightning")
for name in list(sys.modules):
    if name.partition(".")[0] == "lightning_predict":
        del sys.modules[name]
from lightning_predict.callbacks import CostBudget, RuntimePredictor
from lightning.pytorch import Callback
early = CostBudget(usd=1)
print("pytorch_lightning" in sys.modules, isinstance(early, Callback), isinstance(early, other.Callback))

sys.modules["pytorch_lightning"] = other  # the program imports it later
late = RuntimePredictor(["T4"])
print(isinstance(late, Callback), isinstance(late, other.Callback), isinstance(early, other.Callback))
print(deepcopy(late).gpus)
"""


def test_a_package_that_the_program_does_not_use_is_not_imported_until_it_does() -> None:
    ran = run(WITHOUT_THE_OTHER)
    assert ran.stdout.splitlines() == ["False True False", "True True True", "('T4',)"], ran.stderr


def test_where_none_is_imported_yet_all_that_are_installed_are(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = lightning_packages.packages_in_use()
    for name in PACKAGES:
        monkeypatch.delitem(sys.modules, name)
    loaded = dict(zip(PACKAGES, expected, strict=True))
    monkeypatch.setattr(lightning_packages, "import_module", loaded.__getitem__)
    assert lightning_packages.packages_in_use() == expected


def test_without_any_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(lightning_packages, "import_module", missing)
    with pytest.raises(
        MissingDependencyError, match=r"'lightning' and 'pytorch_lightning' cannot.*pip install lightning"
    ):
        lightning_packages.installed_packages()


def test_a_warning_has_its_own_class() -> None:
    with pytest.warns(LightningPredictWarning, match="something"):
        warn("something")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LightningPredictWarning)
        warn("not seen")


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(4, 2), 4),
        ([torch.zeros(4, 2), torch.zeros(4)], 4),
        ({"input": torch.zeros(3, 2), "rest": (torch.zeros(3), "text")}, 3),
        # Sizes that disagree say nothing about samples.
        ([torch.zeros(4, 2), torch.zeros(5)], None),
        (torch.tensor(1.0), None),
        ("text", None),
        ([], None),
        (None, None),
    ],
)
def test_samples_of_a_batch(batch: Any, samples: int | None) -> None:
    assert samples_of(batch) == samples
