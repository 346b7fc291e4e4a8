"""Every function of ours that a Trainer or torch calls is guarded: found by listing every such call, not by hand."""

import inspect
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from lightning.pytorch import Callback
from transformers import TrainerCallback

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from lightning_predict.callbacks.hooks import FitCallback
from lightning_predict.integrations.transformers import RuntimePredictorCallback
from tests.callbacks.small import Small
from tests.soak.faults import ENTRANCES, entrances

OF_USERS: Final = (  # Called by the user's own code, which sees errors about its arguments
    "callbacks/lightning_packages.py Callback.__new__",
    "callbacks/cost_budget.py CostBudget.__init__",
    "callbacks/runtime_predictor.py RuntimePredictor.__init__",
)

OF_PYTHON: Final = (  # Called where an object is freed or garbage collected; Python prints what fails there and goes on
    "record/graph_release.py _after_collection",
    "record/graph_release.py _Keeper.__del__",
    "record/pauses.py PauseTimer._collects",
)

GUARDS: Final = {name for name in ENTRANCES if name.startswith("base/guard.py")}


def is_guarded(method: Any) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and f"base/guard.py {code.co_qualname}" in GUARDS


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RuntimePredictor, Callback),
        (CostBudget, Callback),
        (FitCallback, Callback),
        (RuntimePredictorCallback, TrainerCallback),
    ],
)
def test_every_method_that_a_trainer_may_call_is_guarded(ours: type[Any], theirs: type[Any]) -> None:
    callable_by_trainer = [name for name in dir(theirs) if not name.startswith("_")]
    own = [name for name in callable_by_trainer if name in vars(ours)]
    assert len(own) > 1
    for name in own:
        hook = inspect.getattr_static(ours, name)
        assert isinstance(hook, str) or is_guarded(hook), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_else_of_ours_is_called_in_a_fit(tmp_path: Path, said: list[str], fails: bool) -> None:
    small = Small("lightning.pytorch")

    class Model(type(small.model(validates=True))):  # type: ignore[misc]
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), max_iter=2)

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            if fails and self.batches_trained >= 6:
                raise ValueError("of the user")

    def fits() -> None:
        for checkpoint in (None, "last.ckpt"):
            callbacks = [
                RuntimePredictor(["T4"], print_table=False, warmup_steps=1),
                CostBudget(usd=1e6, usd_per_hour=1.0, warmup_steps=2),
                small.lightning.callbacks.ModelCheckpoint(tmp_path, save_last=True, every_n_train_steps=2),
            ]
            logger = small.lightning.loggers.CSVLogger(tmp_path)
            trainer = small.trainer(
                tmp_path,
                max_epochs=2 if checkpoint is None else 3,
                callbacks=callbacks,
                enable_checkpointing=True,
                logger=logger,
                accumulate_grad_batches=2,
            )
            path = None if checkpoint is None else tmp_path / checkpoint
            with pytest.raises(ValueError, match="of the user") if fails else nullcontext():
                trainer.fit(Model(), small.loader(6), small.loader(2), ckpt_path=path, weights_only=False)

    called = entrances(fits)
    unknown = {name: called[name] for name in called if name not in {*ENTRANCES, *OF_USERS, *OF_PYTHON}}
    assert unknown == {}
    # What keeps a recording unseen was called as well: the list above is not empty by chance.
    assert {"record/modes.py OperationMode.__torch_dispatch__", *GUARDS} <= called.keys()
    said.clear()
