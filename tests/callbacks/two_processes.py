"""Fits on two processes with gloo: `python -m tests.callbacks.two_processes FOLDER`.

Each process writes its observations of a fit to `<fit>/rank<n>.json` in the folder.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from lightning_predict.observe.clock import clock_of_fits
from tests.callbacks.small import Small

CASES: dict[str, Any] = {
    "within": lambda: [RuntimePredictor(["T4", "8xT4", "2x8xT4"]), CostBudget(hours=1000)],
    "without": list,
    "over": lambda: [CostBudget(usd=1e-6, usd_per_hour=1), RuntimePredictor(["T4"])],
}


FITS: dict[str, tuple[str, str]] = {
    "lightning.pytorch": ("lightning.pytorch", "within"),
    "pytorch_lightning": ("pytorch_lightning", "within"),
    "without": ("lightning.pytorch", "without"),
    "over": ("lightning.pytorch", "over"),
}
"""By the name of the folder: the package and the case, one after the other in the same two processes."""


def fit(package: str, folder: Path, case: str) -> None:
    """Fit, and write what this process has seen."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(3)
    small = Small(package)
    callbacks = CASES[case]()
    model = small.model(validates=True)
    logged: list[list[str]] = []

    class Logger(small.lightning.loggers.CSVLogger):  # type: ignore[misc,name-defined]
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            logged.append(sorted(metrics))

    # A clock that each reading moves: a busy machine's would have it predicted again after a long pause between epochs.
    hundredths = itertools.count()
    with (
        warnings.catch_warnings(record=True) as caught,
        clock_of_fits(lambda: next(hundredths) / 100, device=lambda: next(hundredths) / 100),
    ):
        warnings.simplefilter("always")
        trainer = small.trainer(
            folder,
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=2,
            logger=Logger(folder),
            callbacks=callbacks,
        )
        trainer.fit(model, small.loader(16), small.loader(4))
    seen = {
        "batches": model.batches_trained,
        "weights": torch.nn.utils.parameters_to_vector(model.parameters()).tolist(),
        "random": torch.get_rng_state().tolist()[:64],
        "predicted": [one.predictions is not None for one in callbacks if isinstance(one, RuntimePredictor)],
        "reasons": [one.stopping_reason for one in callbacks if isinstance(one, CostBudget)],
        "predictions_logged": sum("predict/T4/iteration_ms" in keys for keys in logged),
        "layouts_logged": sorted({key for keys in logged for key in keys if key.endswith("xT4/iteration_ms")}),
        "steps": [
            [one.predictions[name].iterations for name in ("T4", "8xT4", "2x8xT4")]
            for one in callbacks
            if isinstance(one, RuntimePredictor) and one.predictions is not None and "8xT4" in one.predictions
        ],
        "budgets_logged": sum("run_budget/exceeded" in keys for keys in logged),
        "warned": [str(one.message) for one in caught if "LightningPredict" in one.category.__name__],
    }
    (folder / f"rank{trainer.global_rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    for name, (package, case) in FITS.items():
        fit(package, Path(sys.argv[1]) / name, case)
