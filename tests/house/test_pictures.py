"""The pictures of the documentation show the package's current output."""

import json

from tests.pictures import DOCS, MADE_OF, example, hashes, texts


def test_no_picture_is_stale() -> None:
    found = example()
    assert json.loads(MADE_OF.read_text()) == hashes(found), "make pictures"
    assert all((DOCS / name).stat().st_size > 10_000 for name in hashes(found))


def test_texts_of_pictures_are_current() -> None:
    found = example()
    shown = texts(found)
    step = f"{1000 * found['RTX-4090'].iteration_seconds:.0f} ms"
    assert all("Rent an RTX-4090" in text for text in shown.values())  # the cheapest that the catalogue holds
    assert all(step in text for text in shown.values())
    assert "predict/RTX-4090/cost_usd" in shown["tensorboard.png"]
    assert "predict/T4/cost_usd" not in shown["tensorboard.png"]  # it does not decide
