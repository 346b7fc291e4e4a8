"""Rules for all errors."""

from lightning_predict.base.errors import LightningPredictError, UnknownGpuError


def test_escape_sequences_of_a_terminal_are_shown_as_their_codes() -> None:
    for error in (LightningPredictError, UnknownGpuError):
        assert str(error("GPU \x1b[31mT4\x07\nline")) == r"GPU \x1b[31mT4\x07" + "\nline"
