"""`ProgressFile`: writes the progress of a run to a file (`run/progress.py`), called by a Trainer's hooks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.files import PROGRESS_VARIABLE
from lightning_predict.callbacks.lightning_packages import warn
from lightning_predict.callbacks.output import write_file
from lightning_predict.callbacks.trainer_state import batches_of_fit
from lightning_predict.observe.run_observer import RunObserver
from lightning_predict.run.progress import ProgressKeeper, place_in_use, write_progress

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


class ProgressFile:
    """Progress file, written once a minute. After a failed write, the class warns once and stops writing."""

    def __init__(self, path: Path, keeper: ProgressKeeper) -> None:
        self._path = path
        self._keeper: ProgressKeeper | None = keeper

    @classmethod
    def wanted(cls, path: str | None, trainer: Trainer) -> ProgressFile | None:
        """Return a progress file for the given path, or for the path in the environment; None without a path."""
        name = path or os.environ.get(PROGRESS_VARIABLE)
        if name is None:
            return None
        try:
            place = place_in_use()
        except InvalidArgumentError as error:
            warn(f"RuntimePredictor cannot write its progress: {error}")
            return None
        return cls(Path(name), ProgressKeeper(batches=batches_of_fit(trainer), place=place))

    def on_batch_end(self, trainer: Trainer, observer: RunObserver, *, has_ended: bool = False) -> None:
        """Write the file if the last write was a minute ago."""

        def batch_seconds() -> float | None:
            batch_times = observer.batch_times(batches_per_window=trainer.accumulate_grad_batches)
            return None if batch_times is None else batch_times.step_seconds

        progress = None
        if self._keeper is not None:
            done = trainer.fit_loop.total_batch_idx + 1
            progress = self._keeper.after(done, has_ended=has_ended, batch_seconds=batch_seconds)
        if progress is None:
            return
        path = self._path
        if not write_file(trainer, path, lambda: write_progress(path, progress), what=str(path)):
            self._keeper = None
