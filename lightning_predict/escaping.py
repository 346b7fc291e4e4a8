r"""The one door for text on its way out: each format has a function here that makes foreign text harmless.

Names of modules, machines and providers come from files of other people. They may contain escape sequences of a
terminal, tags, formulas, or newlines that begin a new key of a document. Example::

    >>> print(terminal_text("\x1b[2Jgone"))
    \x1b[2Jgone
    >>> print(comment_line("AWS\nsetup: rm -rf ~"))
    # AWS\x0asetup: rm -rf ~
"""

from __future__ import annotations

import html
import re
from contextlib import AbstractContextManager, ExitStack, redirect_stderr, redirect_stdout
from typing import Any, Final, TextIO

_CONTROLS: Final = "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Control characters but tab and newline, and marks that reorder the text around them."""

_NO_TEXT: Final = re.compile(f"[{_CONTROLS}]")
_NO_LINE: Final = re.compile(f"[\t\n{_CONTROLS}]")
_NO_TERMINAL: Final = re.compile(f"(\x1b\\[(?!8m)[0-9;:]*m)|[{_CONTROLS}]")
_FORMULA: Final = re.compile(r"[=+\-@\t\r]")
_NUMBER: Final = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?%?", re.IGNORECASE)


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def one_line(text: str) -> str:
    r"""Return text without control characters and newlines; they are shown as `\x1b`, `\x0a`."""
    return _NO_LINE.sub(_visible, text)


def terminal_text(text: str) -> str:
    """Return text for a terminal: of its escape sequences only colours and styles are left."""
    return _NO_TERMINAL.sub(lambda match: match[1] or _visible(match), text)


def html_text(text: str) -> str:
    """Escape text for an element or an attribute in HTML."""
    return html.escape(_NO_TEXT.sub(_visible, text))


def markdown_text(text: str) -> str:
    """Escape the characters that end a cell or a line, mark emphasis, or open a tag or a link in Markdown."""
    text = one_line(text.replace("\n", " "))
    for character in "\\|*_":
        text = text.replace(character, f"\\{character}")
    # Entities, because some viewers (such as TensorBoard) ignore a backslash before these characters.
    return text.replace("&", "&amp;").replace("<", "&lt;")


def comment_line(text: str) -> str:
    """Return a comment of YAML, a shell script or a Slurm script in one line."""
    return f"# {one_line(text)}"


def csv_cell(text: str) -> str:
    """Return text that a spreadsheet does not take for a formula; numbers stay numbers."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


class _TerminalStream:
    """A stream whose text passes `terminal_text`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text without foreign escape sequences."""
        self._stream.write(terminal_text(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Look everything else up in the stream."""
        return getattr(self._stream, name)


def escaped_streams(output: TextIO, errors: TextIO) -> AbstractContextManager[object]:
    """Return a context in which standard output and standard error pass `terminal_text`."""
    streams = ExitStack()
    streams.enter_context(redirect_stdout(_TerminalStream(output)))
    streams.enter_context(redirect_stderr(_TerminalStream(errors)))
    return streams
