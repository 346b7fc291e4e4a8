"""The largest batch size, from a step on the meta device that the user hands over."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_predict.callbacks import RuntimePredictor, batch_sizes
from lightning_predict.callbacks.lightning_packages import LightningPredictWarning
from lightning_predict.record.recording import capture
from tests.callbacks.small import BATCH_SIZE, FEATURES, Small, network, our_rows

pytestmark = pytest.mark.usefixtures("readings")


def meta_step(batch_size: int) -> Callable[[], None]:
    with torch.device("meta"):
        model, rows = network(), torch.empty(batch_size, FEATURES)

    def step() -> None:
        model(rows).square().mean().backward()

    return step


def fit(small: Small, folder: Path, step: Any, **options: Any) -> tuple[RuntimePredictor, torch.Tensor]:
    torch.manual_seed(3)
    predictor = RuntimePredictor(["T4", "L4"], meta_step=step)
    model = small.model()
    small.trainer(folder, max_epochs=1, callbacks=predictor, **options).fit(model, small.loader(8))
    return predictor, torch.nn.utils.parameters_to_vector(model.parameters())


def test_it_is_shown_and_logged(small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[int] = []

    def noting(batch_size: int) -> Callable[[], None]:
        asked.append(batch_size)
        return meta_step(batch_size)

    logger = small.lightning.loggers.CSVLogger(tmp_path)
    predictor, _ = fit(small, tmp_path, noting, logger=logger)
    assert asked == [BATCH_SIZE]
    assert [option.gpu for option in predictor.batch_sizes] == ["T4", "L4"]
    assert " samples/s, " in predictor.batch_sizes[0].sentence in capsys.readouterr().out
    (row,) = [row for row in our_rows(logger) if row["predict/T4/largest_batch_size"]]
    assert float(row["predict/T4/largest_batch_size"]) == predictor.batch_sizes[0].batch_size


def test_the_step_on_meta_runs_in_the_trainers_precision(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str | None] = []

    def noting(step: Any, **options: Any) -> Any:
        given.append(options["precision"])
        return capture(step, **options)

    monkeypatch.setattr(batch_sizes, "capture", noting)
    fit(small, tmp_path, meta_step, precision="bf16-mixed")
    fit(small, tmp_path, meta_step)
    assert given == ["bf16-mixed", None]


def test_training_is_the_same(lightning: Small, tmp_path: Path) -> None:
    def drawing(batch_size: int) -> Callable[[], None]:
        torch.rand(7), random.random()  # the user's code may draw random numbers
        return meta_step(batch_size)

    before = random.getstate()
    assert torch.equal(fit(lightning, tmp_path, drawing)[1], fit(lightning, tmp_path, None)[1])
    assert random.getstate() == before


def test_a_meta_step_that_fails_costs_no_prediction(small: Small, tmp_path: Path) -> None:
    def failing(batch_size: int) -> Callable[[], None]:
        raise KeyError("the user's own")

    with pytest.warns(LightningPredictWarning, match='found no largest batch size: KeyError: "the user\'s own"'):
        predictor, _ = fit(small, tmp_path, failing)
    assert predictor.predictions is not None
    assert predictor.outcome is not None
    assert predictor.batch_sizes == ()


def test_a_step_elsewhere_is_refused(lightning: Small, tmp_path: Path) -> None:
    def on_cpu(batch_size: int) -> Callable[[], None]:
        model, rows = network(), torch.zeros(batch_size, FEATURES)
        return lambda: model(rows).sum().backward()

    with pytest.warns(LightningPredictWarning, match="meta_step ran on cpu; make its tensors on the meta"):
        fit(lightning, tmp_path, on_cpu)
