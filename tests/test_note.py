"""Notes are sentences, some of them details, and stay both in place of any string."""

import copy
import json
import pickle

from lightning_predict.base.note import Note, details, is_detail


def test_a_note_is_its_sentence() -> None:
    note = Note("cudnn.benchmark is off.", is_detail=True)
    assert note == "cudnn.benchmark is off."
    assert "benchmark" in note
    assert json.dumps([note]) == '["cudnn.benchmark is off."]'
    assert repr(note) == "'cudnn.benchmark is off.'"


def test_detail_note_stays_a_detail_after_copy_and_pickle() -> None:
    (note,) = details(["no decision"])
    assert is_detail(note)
    assert is_detail(copy.deepcopy(note))
    assert is_detail(pickle.loads(pickle.dumps(note)))


def test_plain_sentences_are_not_details() -> None:
    assert not is_detail("a decision")
    assert not is_detail(Note("a decision"))
