"""A TorchFunctionMode of the script sees the calls of the script only."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from tests.callbacks.small import Small


class DrawsNumbers(TorchFunctionMode):
    """Draws a random number in each call, as an emulation of stochastic rounding does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            torch.rand(())
        return found


def weights(small: Small, folder: Path, callbacks: list[Any], *, around: str) -> tuple[dict[str, Any], torch.Tensor]:
    """Train within the mode, entered around the fit or by a callback."""
    lightning, mode = small.lightning, DrawsNumbers()

    class Enters(lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_start(self, *_: Any) -> None:
            mode.__enter__()  # type: ignore[no-untyped-call]

        def on_train_end(self, *_: Any) -> None:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    torch.manual_seed(7)
    model = small.model()
    enters = {"first": [Enters(), *callbacks], "last": [*callbacks, Enters()]}.get(around, callbacks)
    trainer = small.trainer(folder, max_epochs=2, callbacks=enters)
    if around == "fit":
        with mode:
            trainer.fit(model, small.loader(8))
    else:
        trainer.fit(model, small.loader(8))
    return model.state_dict(), torch.get_rng_state()


@pytest.mark.parametrize("around", ["fit", "first", "last"])
def test_weights_are_equal_to_the_bit_under_a_mode_that_draws_random_numbers(
    lightning: Small, tmp_path: Path, around: str
) -> None:
    predictor = RuntimePredictor(["T4"], print_table=False)
    plain, plain_state = weights(lightning, tmp_path / "plain", [], around=around)
    ours = [predictor, CostBudget(usd=1e6, usd_per_hour=1)]
    found, state = weights(lightning, tmp_path / "ours", ours, around=around)
    assert predictor.predictions is not None
    assert all(torch.equal(plain[name], found[name]) for name in plain)
    assert torch.equal(plain_state, state)
