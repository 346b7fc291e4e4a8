"""The file that a fit keeps of how far it is, for planning again."""

from pathlib import Path
from typing import Any

import pytest

from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.callbacks.lightning_packages import LightningPredictWarning
from lightning_predict.run.progress import PlanSlot, read_progress
from tests.callbacks.small import Small


def fitted(lightning: Small, folder: Path, *, seen: list[float], path: Path) -> None:
    class Look(lightning.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, *_: Any) -> None:
            if path.is_file():
                seen.append(read_progress(path).done)

    predictor = RuntimePredictor(["T4"], print_table=False, learn_from_history=False)
    trainer = lightning.trainer(folder, max_steps=6, callbacks=[predictor, Look()])
    trainer.fit(lightning.model(), lightning.loader())


def test_a_fit_keeps_the_file_that_its_script_names(
    lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bert" / "progress.json"
    monkeypatch.setenv("LIGHTNING_PREDICT_PROGRESS", str(path))
    monkeypatch.setenv("LIGHTNING_PREDICT_PLACE", '{"job": "bert", "node": 1, "machine": "box", "num_gpus": 2}')
    seen: list[float] = []
    fitted(lightning, tmp_path, seen=seen, path=path)
    # Written after the first of six batches, and then once a minute, which the fit does not last.
    assert set(seen) == {1 / 6}
    progress = read_progress(path)
    assert (progress.done, progress.has_ended) == (1.0, True)
    assert progress.place == PlanSlot(job="bert", node=1, machine="box", num_gpus=2)


def test_a_file_that_cannot_be_written_is_one_warning(
    lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_PREDICT_PROGRESS", str(tmp_path))
    with pytest.warns(LightningPredictWarning, match="could not write ") as warned:
        fitted(lightning, tmp_path, seen=[], path=tmp_path)
    assert sum("could not write" in str(warning.message) for warning in warned) == 1
