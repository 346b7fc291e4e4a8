"""Features of Lightning, with both callbacks and without: a fit comes to the same, to the last bit."""

from pathlib import Path

import pytest

from tests.callbacks.features import FITS, UNPREDICTED, callbacks, differences, outcome

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on runs as short as these


@pytest.mark.parametrize("name", FITS)
def test_a_fit_comes_to_the_same_with_and_without_our_callbacks(name: str, tmp_path: Path, said: list[str]) -> None:
    ours = callbacks()
    watched = outcome(FITS[name], tmp_path / "watched", ours)
    assert differences(outcome(FITS[name], tmp_path / "plain", []), watched) == []
    assert (ours[0].predictions is None) == (name in UNPREDICTED)
    assert [words for words in said if " is off" in words] == []
    said.clear()


def test_the_comparison_sees_a_difference(tmp_path: Path) -> None:
    plain, accumulated = (outcome(FITS[name], tmp_path, []) for name in ("plain", "accumulation"))
    assert differences(plain, accumulated) == ["weights", "optimizers", "metrics", "counts"]
