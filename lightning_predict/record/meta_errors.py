"""Explains errors of steps on the meta device: which line needs values, or which operation the meta device lacks.

Example::

    try:
        step()
    except Exception as error:
        raise explained(error) or error
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import Final

import torch

from lightning_predict.base.errors import CaptureError

_NAMES_META: Final = re.compile(r"\bmeta (tensor|device)|\b(Sparse\w*)?Meta('| tensor)|register_meta")
"""torch's errors for operations that the meta device lacks."""

_RAISED: Final = (RuntimeError, AssertionError, ValueError, TypeError)

_READS: Final = re.compile(
    r"called on meta tensors|out of meta tensor|register_meta|type tensor to numpy|repeat_interleave"
)
"""Patterns of torch's errors for calls that need the values of a meta tensor."""

_OURS: Final = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parent.parent}{os.sep}")


def explained(error: Exception) -> CaptureError | None:
    """Return the error to raise instead of torch's error; None if the meta device is not the cause."""
    text = str(error)
    if isinstance(error, CaptureError) or not isinstance(error, _RAISED) or not _NAMES_META.search(text):
        return None
    if not isinstance(error, NotImplementedError) and not _raised_by_torch(error):
        return None
    line = _asking_line(error)
    reason = text.strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    if _READS.search(text):
        return CaptureError(
            f"{line} reads values of a tensor, which meta tensors do not have ({reason}). Create that tensor on the "
            "CPU, for example lengths or indices, remove the line, or record on the CPU or a GPU."
        )
    return CaptureError(
        f"{line} uses an operation that torch does not have on the meta device ({reason}). Use another one, or record "
        "on the CPU or a GPU."
    )


def failed_with_assumptions(error: Exception, notes: Sequence[str]) -> CaptureError:
    """Return the error of a step that failed after values of meta tensors were assumed."""
    return CaptureError(
        f"The step raised {type(error).__name__}: {error} at {_asking_line(error)}. {' '.join(notes)} If that does not "
        "hold, create the tensors concerned on the CPU, or record on the CPU or a GPU."
    )


def _raised_by_torch(error: BaseException) -> bool:
    """Return whether the innermost Python frame belongs to torch, or called torch."""
    frames = extract_tb(error.__traceback__)
    return isinstance(error, (RuntimeError, AssertionError)) or not frames or _is_ours(frames[-1]) or _calls(frames[-1])


def _is_ours(frame: FrameSummary) -> bool:
    return frame.filename.startswith(_OURS)


def _calls(frame: FrameSummary) -> bool:
    return "raise" not in (frame.line or "")


def _asking_line(error: BaseException) -> str:
    """Describe the innermost line of the traceback that is outside torch and this package."""
    frames = [one for one in extract_tb(error.__traceback__) if not _is_ours(one)]
    if not frames:
        return "The step"
    last = frames[-1]
    return f"`{last.line}` ({Path(last.filename).name}, line {last.lineno}, in {last.name})"
