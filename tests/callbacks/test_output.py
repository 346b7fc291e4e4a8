"""Terminal output of a user: the table is complete with every kind of progress bar."""

import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.callbacks.lightning_packages import LightningPredictWarning
from lightning_predict.callbacks.output import table_text
from lightning_predict.reports.table import plain_table
from tests.callbacks.small import Small

pytestmark = pytest.mark.usefixtures("readings")

TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def fit(small: Small, folder: Path, **options: Any) -> RuntimePredictor:
    predictor = RuntimePredictor(["T4", "L4"])
    trainer = small.trainer(folder, max_epochs=1, **({"callbacks": predictor} | options))
    trainer.fit(small.model(), small.loader(8))
    return predictor


def table_lines(predictor: RuntimePredictor) -> list[str]:
    """The lines of the table and of its notes, as they are printed where there is no terminal."""
    assert predictor.predictions is not None
    return [line.rstrip() for line in table_text(predictor.predictions).splitlines() if line.strip()]


def test_without_a_progress_bar(small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predictor = fit(small, tmp_path)
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert set(table_lines(predictor)) <= set(printed)


@pytest.mark.parametrize("bar", ["TQDMProgressBar", "RichProgressBar"])
def test_output_next_to_a_progress_bar(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str], bar: str
) -> None:
    predictor = RuntimePredictor(["T4", "L4"])
    progress = getattr(small.lightning.callbacks, bar)()
    fit(small, tmp_path, callbacks=[progress, predictor], enable_progress_bar=True)
    captured = capsys.readouterr()
    # A bar redraws its line after a carriage return; what stays is what follows the last of them.
    printed = [TERMINAL_CODES.sub("", line.rpartition("\r")[2]).rstrip() for line in captured.out.split("\n")]
    for line in table_lines(predictor):
        assert line in printed, captured.out
    assert "Epoch 0" in captured.out + captured.err


def test_output_next_to_a_custom_progress_bar(small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class OwnBar(small.lightning.callbacks.ProgressBar):  # type: ignore[misc, name-defined]
        """As in Lightning's documentation: without `is_enabled`, which `LightningModule.print` asks for."""

        def disable(self) -> None: ...

    predictor = RuntimePredictor(["T4", "L4"])
    fit(small, tmp_path, callbacks=[OwnBar(), predictor], enable_progress_bar=True)
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert set(table_lines(predictor)) <= set(printed)
    assert predictor.outcome is not None


def test_table_equals_the_plain_table(lightning: Small, tmp_path: Path) -> None:
    predictor = fit(lightning, tmp_path)
    assert predictor.predictions is not None
    shown = table_text(predictor.predictions).split()
    numbers = [word for word in plain_table(predictor.predictions).split() if word.startswith("$")]
    assert numbers
    assert set(numbers) <= set(shown)


def test_characters_that_the_output_lacks_are_replaced(
    lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    assert fit(lightning, tmp_path).outcome is not None
    assert b"T4" in written.getvalue()


@pytest.mark.parametrize("has_ended", [False, True])
def test_closed_output_is_one_warning(
    lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    # `python train.py | head`: rich would end the program, and write all that follows to /dev/null.
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "w", encoding="utf-8", buffering=1) as output:
        monkeypatch.setattr(sys, "stdout", output)
        if has_ended:
            with pytest.raises(BrokenPipeError):
                output.write("what is left in its buffer cannot be written when it is flushed\n")
        with pytest.warns(LightningPredictWarning, match="could not print its predictions: BrokenPipeError"):
            predictor = fit(lightning, tmp_path)
        with pytest.raises(BrokenPipeError):
            os.write(theirs, b"it is still the pipe")
        os.dup2(os.open(os.devnull, os.O_WRONLY), theirs)  # so that it can be closed
    assert predictor.predictions is not None
    assert predictor.outcome is not None
