"""`Note`: a sentence for the user beside a prediction, which may be a detail.

Notes of a trace, of a step and of a whole prediction are strings, so that they print, compare and become JSON as they
are. One that changes no decision is a detail, shown only where everything is asked for. Example::

    >>> notes = ("cuDNN converts the images.", Note("cudnn.benchmark is off.", is_detail=True))
    >>> [note for note in notes if not is_detail(note)]
    ['cuDNN converts the images.']
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final


@final
class Note(str):
    """A sentence for the user.

    Attributes:
        is_detail: It changes no decision, and is shown only where all notes are asked for.
    """

    is_detail: bool

    def __new__(cls, text: str, *, is_detail: bool = False) -> Note:
        """Make a note of a sentence.

        Args:
            text: The sentence.
            is_detail: It changes no decision.
        """
        made = super().__new__(cls, text)
        made.is_detail = is_detail
        return made


def is_detail(note: str) -> bool:
    """Return whether a note changes no decision; a plain string may."""
    return isinstance(note, Note) and note.is_detail


def details(texts: Iterable[str]) -> tuple[Note, ...]:
    """Return sentences as details."""
    return tuple(Note(text, is_detail=True) for text in texts)
