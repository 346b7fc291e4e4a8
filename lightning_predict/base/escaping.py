r"""Escaping of text for output: one function for each format makes foreign text harmless.

Names of modules, machines and providers come from other people's files. A name may contain terminal escape sequences,
tags, or newlines that start a new key of a document. Example::

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
"""Control characters except tab and newline, and Unicode marks that reorder text."""

_NO_TEXT: Final = re.compile(f"[{_CONTROLS}]")
_NO_LINE: Final = re.compile(f"[\t\n{_CONTROLS}]")
_STYLE: Final = r"(?:[0-7]|2[1-9]|3[1-79]|9[1-7]|38;5;\d{1,3}|38;2;\d{1,3};\d{1,3};\d{1,3})"
"""A style or a text colour but black; concealed text and colours of the background may hide text."""

_NO_TERMINAL: Final = re.compile(f"(\x1b\\[(?:{_STYLE}(?:;{_STYLE})*)?m)|[{_CONTROLS}]")


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def one_line(text: str) -> str:
    r"""Replace control characters and newlines by visible codes: `\x1b`, `\x0a`."""
    return _NO_LINE.sub(_visible, text)


def terminal_text(text: str) -> str:
    """Return text for a terminal: colours and styles stay, other escape sequences become visible codes."""
    return _NO_TERMINAL.sub(lambda match: match[1] or _visible(match), text)


def visible_text(text: str) -> str:
    """Replace control characters by visible codes, apart from tab and newline."""
    return _NO_TEXT.sub(_visible, text)


def html_text(text: str) -> str:
    """Escape text for an HTML element or attribute."""
    return html.escape(visible_text(text))


def markdown_text(text: str) -> str:
    """Escape the characters that have a meaning in Markdown, for text in a table cell or a line."""
    text = one_line(text.replace("\n", " "))
    for character in "\\|*_":
        text = text.replace(character, f"\\{character}")
    # Entities instead of a backslash, which some viewers (such as TensorBoard) ignore before these characters.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]&#40;")


def comment_line(text: str) -> str:
    """Return text as one comment line of YAML or a shell script."""
    return f"# {one_line(text)}"


class _TerminalStream:
    """Text stream that applies `terminal_text` to everything written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(terminal_text(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def escaped_streams(output: TextIO, errors: TextIO) -> AbstractContextManager[object]:
    """Return a context manager that applies `terminal_text` to standard output and standard error."""
    streams = ExitStack()
    streams.enter_context(redirect_stdout(_TerminalStream(output)))
    streams.enter_context(redirect_stderr(_TerminalStream(errors)))
    return streams
