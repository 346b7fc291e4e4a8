"""`Note`: a sentence for the user next to a prediction, optionally marked as a detail or as decisive.

Notes are strings, so they print, compare and serialize to JSON directly. A detail changes no decision and is shown only
in verbose output. If space is limited, decisive notes come first. Example::

    >>> notes = ("cuDNN converts the images.", Note("cudnn.benchmark is off.", is_detail=True))
    >>> [note for note in notes if not is_detail(note)]
    ['cuDNN converts the images.']
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ASSUMED_VALUES: Final = "Meta tensors have no values; assumed:"
"""Start of the notes on values that a step reads on the meta device, which are details."""


class Note(str):
    """A sentence for the user."""

    is_detail: bool  # Whether the note changes no decision, and is shown only in verbose output
    is_decisive: bool  # Whether the note alone may change a decision, and is shown before other notes

    def __new__(cls, text: str, *, is_detail: bool = False, is_decisive: bool = False) -> Note:
        """Create a note from a sentence."""
        made = super().__new__(cls, text)
        made.is_detail = is_detail
        made.is_decisive = is_decisive
        return made


def is_detail(note: str) -> bool:
    """Return whether a note is marked as a detail."""
    return isinstance(note, Note) and note.is_detail


def is_decisive(note: str) -> bool:
    """Return whether a note is marked as decisive."""
    return isinstance(note, Note) and note.is_decisive


def decisive(texts: Iterable[str]) -> tuple[Note, ...]:
    """Mark sentences as decisive."""
    return tuple(Note(text, is_decisive=True) for text in texts)


def details(texts: Iterable[str]) -> tuple[Note, ...]:
    """Mark sentences as details."""
    return tuple(Note(text, is_detail=True) for text in texts)
