"""Memory that the rest of a run may need on the GPU in use, logged before training continues."""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.callbacks.lightning_packages import LightningPredictWarning
from lightning_predict.callbacks.trainer_loop import sequence_length
from lightning_predict.observe.memory_risks import longest_sequence, missing_state_bytes
from lightning_predict.record.session import recordings_on
from tests.callbacks.fake_device import FakeDevice
from tests.callbacks.small import BATCH_SIZE, FEATURES, Rows, Small, network
from tests.callbacks.test_on_a_device import small_document

pytestmark = pytest.mark.usefixtures("readings")

WORDS = 6


class Claimed:
    """A loader of small batches that says that they are large, as a test has no room for large ones."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.zeros(2, BATCH_SIZE, FEATURES))


class Sentences(Rows):
    """Sentences of six words, of a corpus that says how long each of its is."""

    lengths = (WORDS, 3, 60 * WORDS)

    def __getitem__(self, index: int) -> Tensor:
        return torch.arange(WORDS)


def said(small: Small, folder: Path, model: Any, *loaders: Any, gpu: str = "T4", **options: Any) -> list[str]:
    """Train with the callback and return its messages about memory."""
    predictor = RuntimePredictor(gpus=["T4"], learn_from_history=False, print_table=False)
    trainer = small.trainer(folder, callbacks=[predictor], max_epochs=2, **options)
    with recordings_on(gpu), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, *loaders)
    assert trainer.state.finished
    assert predictor.trace is not None
    mine = [str(warning.message) for warning in caught if issubclass(warning.category, LightningPredictWarning)]
    return [warning.removeprefix("RuntimePredictor, memory: ") for warning in mine if "memory: " in warning]


def test_a_validation_batch_that_is_larger(small: Small, tmp_path: Path) -> None:
    # A sample is 8 features, 16 hidden values three times at most, and 2 results: at least 24 x 4 bytes at a time,
    # so that 2^28 of them take at least 24 GiB, of the T4's 14.8.
    for checks in (2, 0):  # with a batch of the sanity check, and without: its loader is made late
        (sentence,) = said(
            small, tmp_path, small.model(validates=True), small.loader(8), Claimed(2**28), num_sanity_val_steps=checks
        )
        assert sentence.startswith("A validation batch of 268,435,456 samples (4 in training) needs about ")
        assert sentence.endswith("a chance of <1 %. Give the validation loader a smaller batch_size.")
        sizes = re.search(r"about ([\d.]+) of ([\d.]+) GiB on this T4", sentence)
        assert sizes is not None
        assert 24 < float(sizes[1]) < 96  # at most four times that, fragments included
        assert sizes[2] == "14.8"  # 16 GiB less 1 / 16 for ECC and 1.3 % for the driver


def test_nothing_is_said_of_what_fits(small: Small, tmp_path: Path) -> None:
    assert said(small, tmp_path, small.model(validates=True), small.loader(8), Claimed(2**20)) == []


def two_optimizers(small: Small, elements: int) -> Any:
    """A module whose second optimizer waits, with a large parameter that takes no room here."""

    class Two(small.lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.first = network()
            self.second = nn.Parameter(torch.zeros(1).expand(elements))

        def training_step(self, batch: Tensor, batch_idx: int) -> None:
            first, _ = self.optimizers()
            self.manual_backward(self.first(batch).square().mean())
            first.step()
            first.zero_grad()

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [torch.optim.SGD(self.first.parameters(), lr=0.01), torch.optim.Adam([self.second])]

    return Two()


def test_the_state_of_an_optimizer_that_has_made_no_update(small: Small, tmp_path: Path) -> None:
    (sentence,) = said(small, tmp_path, two_optimizers(small, 2**31), small.loader(8))
    # Two values of 4 bytes for each of 2^31: 16 GiB, in addition to the parameter and its gradient, 8 GiB each.
    assert sentence.startswith("The first optimizer update (16.0 GiB of new state) needs about 32")
    assert sentence.endswith("Use a smaller batch or an optimizer with less state.")
    assert said(small, tmp_path, two_optimizers(small, 2**20), small.loader(8)) == []


def test_missing_state_equals_the_state_of_the_first_update() -> None:
    module = network()
    for make in (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad):
        optimizer = make(module.parameters(), lr=0.0)
        expected = missing_state_bytes(optimizer)
        module(torch.zeros(2, FEATURES)).sum().backward()
        before = torch.nn.utils.parameters_to_vector(module.parameters())
        optimizer.step()
        state = [value for values in optimizer.state.values() for value in values.values() if torch.is_tensor(value)]
        made = sum(value.numel() * value.element_size() for value in state)
        # Adagrad makes its state when it is made, so that none is missing.
        assert expected == (0 if make is torch.optim.Adagrad else made)
        assert missing_state_bytes(optimizer) == 0
        assert torch.equal(before, torch.nn.utils.parameters_to_vector(module.parameters()))
    assert missing_state_bytes(object()) is None


def test_the_longest_sequence_on_a_gpu_whose_peak_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Small("lightning.pytorch")
    device = FakeDevice(small_document())  # which says that 1 GiB was allocated, of 32
    model = small.model()
    model.network = nn.Sequential(nn.Embedding(WORDS, FEATURES), network())
    predictor = RuntimePredictor(gpus=["T4"], learn_from_history=False, print_table=False)
    with device.plugged_in(monkeypatch, SingleDeviceStrategy):
        trainer = small.trainer(tmp_path, callbacks=[predictor], max_epochs=1)
        loader = DataLoader(Sentences(40), batch_size=BATCH_SIZE)
        with pytest.warns(LightningPredictWarning) as caught:
            trainer.fit(device.drives(model), loader)
    (sentence,) = [str(warning.message) for warning in caught if "memory: " in str(warning.message)]
    # Nearly all of the 1 GiB goes with the length: 60 times as much of it, 3 % reserved beyond, and the context.
    assert "A batch with the longest sequence (360, recorded: 6) needs about 62" in sentence
    assert "of 32.0 GiB on this V100" in sentence


def test_lengths_of_loaders() -> None:
    assert sequence_length({"input_ids": torch.zeros(2, 9, dtype=torch.int64), "labels": torch.zeros(2)}) == 9
    assert sequence_length(torch.zeros(2, 9)) is None
    assert longest_sequence([DataLoader(Sentences(1)), DataLoader(Rows(1))]) == 360
    assert longest_sequence(DataLoader(Rows(1))) is None

    class Table(Rows):
        column_names = ("text", "length")

        def __getitem__(self, key: Any) -> Any:
            return [4, 7] if key == "length" else super().__getitem__(key)

    assert longest_sequence(DataLoader(Table(1))) == 7
