"""Validated reading of external files: JSON, TOML, YAML and CSV, with size limits and error locations.

A reader returns a `Checked`: a value with its file and its location in the file. Each method of `Checked` returns the
value as the requested type, or raises the file's error class. The error message has the location, the actual value and
the expected value. Example::

    >>> from lightning_predict.base.errors import TraceFormatError
    >>> run = File("run.json", TraceFormatError)
    >>> Checked({"batches": -1}, run).member("batches").integer(minimum=1)
    Traceback (most recent call last):
    ...
    lightning_predict.base.errors.TraceFormatError: run.json: batches is -1; expected an integer of at least 1.
"""

from __future__ import annotations

import difflib
import io
import json
import numbers
import os
import re
import reprlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lightning_predict.base.errors import LightningPredictError
from lightning_predict.base.timeout import PATIENCE_SECONDS

if TYPE_CHECKING:
    import yaml

Value = TypeVar("Value")
Default = TypeVar("Default")
Choice = TypeVar("Choice", bound=str)

MAX_BYTES: Final = 1 << 30  # Maximum size of a JSON or CSV file after decompression: parsing such a profile needs 10 GB
MAX_WRITTEN_BYTES: Final = 1 << 20  # Maximum size of a YAML or TOML file. PyYAML takes up to 20 seconds per megabyte.

MAX_MERGED_FIELDS: Final = 100_000
"""Maximum number of fields that merges (`<<`) copy in a YAML file. Chains of merges grow quadratically."""

MAX_DEPTH: Final = 100  # Maximum nesting depth. Profiles have six levels; Python's recursion limit is 1,000 calls.
MAX_DIGITS: Final = 100  # Maximum number of digits of a number. 17 are exact for a float; the largest has 309 digits
MAX_INTEGER: Final = 2**63 - 1  # Largest integer that NumPy arrays can hold

DAY: Final = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
MONTH: Final = re.compile(r"\d{4}-(0[1-9]|1[0-2])")
YEAR: Final = re.compile(r"\d{4}")

_GZIP_MAGIC: Final = b"\x1f\x8b"
CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class File:
    """An external file, as named in error messages."""

    name: str
    error: type[LightningPredictError]
    advice: str = ""  # Sentence at the end of each error message, for example how to get a valid file

    def error_at(self, problem: str, place: str = "", line: int | str | None = None) -> LightningPredictError:
        """Return the error "{file}, line {line}: {place} {problem}". The caller raises the error."""
        where = self.name + ("" if line is None else f", line {line}") + (f": {place}" if place else "")
        return self.error(f"{where} {problem}{self.advice and ' '}{self.advice}".replace("\n", "\\n"))


@dataclass(frozen=True, slots=True)
class Checked:
    """A value from an external file, with its location."""

    value: Any  # The parsed value. A row of a CSV file is a dictionary of strings.
    file: File
    place: str = ""  # Path of the value in the file, for example `operations[3].phase`; empty for the whole file
    line: int | None = None  # Line of the file, counted from 1; None if the format has no lines

    def error(self, words: str) -> LightningPredictError:
        """Return an error about this location. The caller raises the error."""
        return self.file.error_at(words, self.place or ("the whole file" if self.line is None else ""), self.line)

    def unexpected(self, expected: str) -> LightningPredictError:
        """Return an error with the actual and the expected value. The caller raises the error."""
        return self.error(f"is {shown(self.value)}; expected {expected}.")

    def mapping(self) -> dict[Any, Any]:
        """Return the value if it is a dictionary; otherwise raise the file's error."""
        if not isinstance(self.value, dict):
            raise self.unexpected("an object of keys and values")
        return self.value

    def member(self, name: Any, expected: str = "it in every such file") -> Checked:
        """Return a required field.

        Args:
            name: Key of the field.
            expected: Expectation that the error message for a missing field states.
        """
        mapping = self.mapping()
        place = f"{self.place}.{name}" if self.place else str(name)
        if name not in mapping:
            raise self.file.error_at(f"is missing; expected {expected}.", place, self.line)
        line = mapping.lines.get(name, self.line) if type(mapping) is _LinedDict else self.line
        return Checked(mapping[name], self.file, place, line)

    def members(self) -> dict[Any, Checked]:
        """Return all fields by key."""
        return {name: self.member(name) for name in self.mapping()}

    def has(self, name: str) -> bool:
        """Return whether a field exists and is not null."""
        return self.mapping().get(name) is not None

    def optional(self, name: str, read: Callable[[Checked], Value], default: Default) -> Value | Default:
        """Return an optional field, converted by `read`, or the default."""
        return read(self.member(name)) if name in self.mapping() else default

    def check_keys(self, required: Iterable[str] = (), optional: Iterable[str] = ()) -> None:
        """Raise an error for missing keys and for unknown keys, such as misspelt keys."""
        known = frozenset(optional).union(required)
        if not known.issuperset(self.mapping()):
            for name in self.mapping():
                if name in known:
                    continue
                guess = _did_you_mean(name, known)
                raise replace(self.member(name), place=self.place).error(
                    f"has the field {shown(name)}; expected only {', '.join(sorted(known))}.{guess}"
                )
        for name in sorted(required):
            self.member(name)

    def items(self, *, length: int | None = None, named: Sequence[str] = ()) -> list[Checked]:
        """Return the elements of an array.

        Args:
            length: Required length; None for any length.
            named: Fields whose values identify an element in error messages, instead of its index.
        """
        value = self.value
        if not isinstance(value, list):
            raise self.unexpected("an array")
        if length is not None and len(value) != length:
            raise self.unexpected(f"an array of {length}")
        lines = value.lines if type(value) is _LinedList else None
        file, place, line = self.file, self.place, self.line
        return [
            Checked(
                item,
                file,
                f"{place}[{_name(item, named) or index}]" if named else f"{place}[{index}]",
                lines[index] if lines else line,
            )
            for index, item in enumerate(value)
        ]

    def text(self) -> str:
        """Return a string."""
        if not isinstance(self.value, str):
            raise self.unexpected("a string")
        return self.value

    def words(self) -> str:
        """Return a string that is not blank."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.unexpected("a text that is not blank")
        return self.value

    def texts(self) -> tuple[str, ...]:
        """Return an array of unique strings that are not blank."""
        value = self.value
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            raise self.unexpected("a list of texts that are not blank")
        if len(set(value)) < len(value):
            raise self.unexpected("each text once; remove the repetition")
        return tuple(value)

    def choice(self, options: Sequence[Choice]) -> Choice:
        """Return a string that is one of the options."""
        for option in options:
            if self.value == option:
                return option
        guess = _did_you_mean(self.value, options)
        raise self.error(f"is {shown(self.value)}; expected one of {', '.join(options)}.{guess}")

    def matching(self, expected: str, *patterns: re.Pattern[str]) -> str:
        """Return a string that fully matches one of the patterns."""
        if not isinstance(self.value, str) or not any(pattern.fullmatch(self.value) for pattern in patterns):
            raise self.unexpected(expected)
        return self.value

    def date(self) -> str:
        """Return an ISO year, month or day as a string."""
        return self.matching("a date like 2025, 2025-03 or 2025-03-31", YEAR, MONTH, DAY)

    def url(self) -> str:
        """Return an address that starts with https://."""
        return self.matching("an address that starts with https://", re.compile(r"https://.*"))

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            raise self.unexpected("true or false")
        return self.value

    def integer(self, *, minimum: int = 0, maximum: int | None = None) -> int:
        """Return an integer within bounds."""
        value, highest = self.value, MAX_INTEGER if maximum is None else maximum
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= highest:
            stated = highest if maximum is not None or (isinstance(value, int) and value > highest) else None
            raise self.unexpected(
                f"an integer of at least {minimum}" + ("" if stated is None else f" and at most {stated}")
            )
        return value

    def integers(self, *, maximum: int | None = None) -> tuple[int, ...]:
        """Return an array of integers of at least 0."""
        value, highest = self.value, MAX_INTEGER if maximum is None else maximum
        if type(value) is list and all(type(item) is int and 0 <= item <= highest for item in value):
            return tuple(value)
        return tuple(item.integer(maximum=maximum) for item in self.items())  # raises an error that names the element

    def any_number(self) -> float:
        """Return a finite number."""
        value = self.value
        if not isinstance(value, int | float) or isinstance(value, bool) or not -_LARGEST <= value <= _LARGEST:
            raise self.unexpected("a finite number")
        return value

    def number(self) -> float:
        """Return a finite number of at least 0."""
        value = self.any_number()
        if value < 0:
            raise self.unexpected("a number of at least 0")
        return value

    def positive(self, meaning: str = "") -> float:
        """Return a finite number above 0. Error messages quote `meaning`."""
        value = self.value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _LARGEST:
            raise self.unexpected(f"a finite number above 0{meaning and ', '}{meaning}")
        return float(value)

    def parsed(self) -> Checked:
        """Convert a numeric string, such as a CSV cell, to a number, and 2.0 to 2. Other values stay unchanged."""
        value = self.value
        if isinstance(value, str) and len(value) <= MAX_DIGITS:
            try:
                value = float(value)
            except ValueError:
                return self
        is_whole = isinstance(value, float) and abs(value) <= _EXACT and value == int(value)
        return replace(self, value=int(value) if is_whole else value)


_LARGEST: Final = sys.float_info.max
_EXACT: Final = 2**53


def shown(value: object) -> str:
    """Format any value for an error message: at most 60 characters, in bounded time."""
    text = _SHOWN.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def plain_number(value: object) -> float | None:
    """Convert a number (int, float, Decimal, Fraction, a scalar of numpy or torch) to a float; None unless finite."""
    try:
        if getattr(value, "shape", None) == () and not isinstance(value, numbers.Real):
            value = value.item()  # type: ignore[attr-defined]
        if isinstance(value, bool) or not isinstance(value, numbers.Real | Decimal):
            return None
        number = float(value)
    except (OverflowError, ValueError, RuntimeError):  # a tensor on the meta device has no value
        return None
    return number if abs(number) <= _LARGEST else None


def positive_number(value: object) -> float | None:
    """Convert a number as `plain_number`; None unless positive."""
    number = plain_number(value)
    return number if number is not None and number > 0 else None


def nearest(word: str, words: Iterable[str]) -> str:
    """Return a sentence that suggests the nearest of the known words, or lists all of them."""
    known = sorted(set(words))
    return _did_you_mean(word, known).strip() or f"Expected one of: {', '.join(known)}."


def read_json(
    path: str | os.PathLike[str], error: type[LightningPredictError], *, name: str = "", strict: bool = True
) -> Checked:
    """Read a JSON file, plain or compressed with gzip.

    Args:
        path: The file.
        error: Class of the errors to raise for invalid content.
        name: Name of the file in error messages; empty for the path.
        strict: Reject common extensions of JSON: infinite numbers, control characters in strings.

    Raises:
        LightningPredictError: The file is truncated, not JSON, or over a limit; raised as `error`.
        OSError: The file cannot be read.
    """
    file = File(name or os.fspath(path), error)
    return parse_json(_content(path, file, MAX_BYTES), file, strict=strict)


def parse_json(content: bytes | bytearray, file: File, *, strict: bool = True) -> Checked:
    """Parse JSON; see `read_json`."""
    if (depth := _json_depth(content)) > MAX_DEPTH:
        raise file.error_at(f"is nested {depth:,} levels deep; expected at most {MAX_DEPTH}.")
    number: Callable[[str], Any] | None = None
    if b"0" * (MAX_DIGITS + 1) in content.translate(_DIGITS_AS_ZERO):  # may be inside a string
        number = _short_number(file)
    try:
        value = json.loads(
            content.decode(),
            parse_constant=_refuse_constant if strict else float,
            parse_int=number,
            parse_float=number,
            strict=strict,
        )
    except (ValueError, RecursionError) as error:
        start = content.lstrip()[:40].split(b"\n")[0].decode(errors="replace")
        if start and not start.startswith(("{", "[")):
            raise file.error_at(f"is not JSON: it begins with {shown(start)}.") from error
        raise file.error_at(f"is not valid JSON ({error}); it may be truncated. Copy or record it again.") from error
    return Checked(value, file)


def read_toml(path: Path, error: type[LightningPredictError]) -> Checked:
    """Read a TOML file.

    Raises:
        LightningPredictError: The file is missing, not TOML, or over a limit; raised as `error`.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    file = File(path.name, error)
    content = _written(path, file, "TOML")
    if _LONG_KEY.search(content):  # tomllib's time grows quadratically with the number of dots in a key
        raise file.error_at(f"has a key that is nested deeper than {MAX_DEPTH} levels; expected at most that.")
    try:
        document = tomllib.loads(content.decode())
    except RecursionError:
        raise file.error_at(f"is nested too deep; expected at most {MAX_DEPTH} levels.") from None
    except ValueError as problem:
        raise file.error_at(f"is not valid TOML: {problem}. Correct it there.") from problem
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        level = [item for value in level for item in _parts(value)]
        if any(isinstance(item, int) and abs(item) >= _TOO_LONG for item in level):
            raise file.error_at(f"has a number of more than {MAX_DIGITS} digits; expected fewer.")
    if level:
        raise file.error_at(f"is nested deeper than {MAX_DEPTH} levels; expected at most that.")
    return Checked(document, file)


def read_yaml(path: Path, error: type[LightningPredictError], *, name: str = "") -> Checked:
    """Read a YAML file of plain values, each with its line.

    Args:
        path: The file.
        error: Class of the errors to raise.
        name: Name of the file in error messages; empty for the file name without folders.

    Raises:
        LightningPredictError: The file is missing, not YAML, over a limit, or has a duplicate key; raised as `error`.
    """
    import yaml

    file = File(name or path.name, error)
    content = _written(path, file, "YAML")
    try:
        loader = yaml.SafeLoader(content.decode())
        _limit(loader, file)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = None if mark is None else f"{mark.line + 1}, column {mark.column + 1}"
        words = f"is not valid YAML: {problem.problem or problem.context}. Correct it there."
        raise file.error_at(words, line=where) from None
    except RecursionError:
        raise file.error_at(f"is nested too deep; expected at most {MAX_DEPTH} levels.") from None
    except (yaml.YAMLError, ValueError) as problem:
        raise file.error_at(f"is not valid YAML: {' '.join(str(problem).split())}. Correct it there.") from None
    return Checked(None if root is None else _Nodes(loader, file).value(root, "", 0)[0], file)


def read_text(path: Path, error: type[LightningPredictError]) -> str:
    """Read a short text file.

    Raises:
        LightningPredictError: The file is missing, not UTF-8, or over the size limit; raised as `error`.
    """
    file = File(path.name, error)
    try:
        return _written(path, file, "text").decode()
    except UnicodeDecodeError as problem:
        raise file.error_at(f"is not text: {problem}. Save it as UTF-8.") from problem


def read_csv(
    path: str | os.PathLike[str],
    error: type[LightningPredictError],
    *,
    name: str = "",
    columns: Sequence[str] = (),
    header: Sequence[str] = (),
    delimiter: str = ",",
) -> Iterator[Checked]:
    """Yield the rows of a CSV file, plain or compressed with gzip, as mappings from columns to strings.

    Blank lines are skipped.

    Args:
        path: The file. Its first line names the columns.
        error: Class of the errors to raise for invalid content.
        name: Name of the file in error messages; empty for the path.
        columns: Required columns.
        header: Names of the columns, for a file without a header line.
        delimiter: Separator of the cells.

    Raises:
        LightningPredictError: The file is not CSV, not UTF-8, or over a limit, a column is missing, or a row has the
            wrong length; raised as `error`.
        OSError: The file cannot be read.
    """
    import csv

    file = File(name or os.fspath(path), error)
    content = _content(path, file, MAX_BYTES)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise file.error_at(f"is not UTF-8 text: {problem.reason}. Save it as UTF-8.", line=line) from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    line = 1  # first line of a row; a quoted cell may span several lines
    expected = f"the {len(header)} of such a file" if header else ""
    try:
        header = header or next(reader, [])
        expected = expected or f"the {len(header)} of line 1"
        for column in columns:
            if column not in header:
                names = ", ".join(map(repr, header[:20])) or "none"
                words = f"is not a column of this file; expected {', '.join(columns)}. Columns found: {names}."
                raise file.error_at(words, column, 1)
        line = reader.line_num + 1
        for cells in reader:
            if cells:
                if len(cells) != len(header):
                    raise file.error_at(f"has {len(cells)} cells; expected {expected}.", line=line)
                yield Checked(dict(zip(header, cells, strict=True)), file, "", line)
            line = reader.line_num + 1
    except csv.Error as problem:
        raise file.error_at(f"is not valid CSV: {problem}. Correct it there.", line=line) from None


# Limits.

_TOO_LONG: Final = 10**MAX_DIGITS
_DIGITS_AS_ZERO: Final = bytes(48 if chr(code).isdigit() and code < 128 else code for code in range(256))
_LONG_KEY: Final = re.compile(
    rb"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){%d}""" % MAX_DEPTH, re.ASCII
)
_BRACKETS: Final = b'[]{}"\\'
_NO_BRACKETS: Final = bytes(set(range(256)) - set(_BRACKETS))
_STEPS: Final = {code: 1 if code in b"[{" else -1 if code in b"]}" else 0 for code in _BRACKETS}


def _content(path: str | os.PathLike[str], file: File, limit: int) -> bytearray:
    """Read a file up to a size limit, and decompress gzip.

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, "rb") as stream:
        if stream.peek(2)[:2] != _GZIP_MAGIC:
            return _limited(stream, file, limit, "")
        import gzip
        import zlib

        try:
            return _limited(gzip.GzipFile(fileobj=stream), file, limit, " once unpacked")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise file.error_at(
                f"is damaged gzip data ({error}); expected a whole file. Copy or record it again."
            ) from error


def _limited(stream: Any, file: File, limit: int, state: str) -> bytearray:
    content = bytearray()
    while chunk := stream.read(CHUNK_BYTES):
        content += chunk
        if len(content) > limit:
            raise file.error_at(
                f"is larger than {limit >> 20:,} MiB{state}; expected at most that. Write a smaller one, for example "
                "of fewer steps or rows."
            )
    return content


def _written(path: Path, file: File, kind: str) -> bytearray:
    """Read a hand-written file (TOML, YAML or text) up to `MAX_WRITTEN_BYTES`."""
    try:
        return _content(path, file, MAX_WRITTEN_BYTES)
    except FileNotFoundError:
        raise file.error(f"{path} does not exist; give the path of a {kind} file.") from None
    except OSError as error:
        raise file.error_at(f"cannot be read ({error.strerror}); expected a {kind} file.") from None


def _json_depth(content: bytes | bytearray) -> int:
    """Return the nesting depth of JSON without parsing: count brackets outside strings."""
    skeleton = content.translate(None, _NO_BRACKETS).replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = b"".join(skeleton.split(b'"')[::2])
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def _short_number(file: File) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        if len(text) > MAX_DIGITS:
            raise file.error_at(f"has a number of {len(text):,} characters; expected at most {MAX_DIGITS}.")
        return float(text) if set(text) & set(".eE") else int(text)

    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"the number {name} is not JSON")


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


# YAML with lines.

_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _LinedDict(dict[Any, Any]):
    """Dictionary with the line of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Any, int] = {}


class _LinedList(list[Any]):
    """List with the line of each element."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []


def _limit(loader: yaml.SafeLoader, file: File) -> None:
    """Make PyYAML raise an error for deep nesting, and for files that take too long to parse."""
    fetch, fetch_flow_start, add_indent = (
        loader.fetch_more_tokens,
        loader.fetch_flow_collection_start,
        loader.add_indent,
    )
    end = time.thread_time() + PATIENCE_SECONDS

    def check_depth() -> None:
        if loader.flow_level + len(loader.indents) >= MAX_DEPTH:
            raise file.error_at(f"is nested too deep; expected at most {MAX_DEPTH} levels.", line=loader.line + 1)

    def checked_fetch() -> None:
        if time.thread_time() > end:
            words = f"takes longer than {PATIENCE_SECONDS:g} s to read up to here; expected a file that takes less."
            raise file.error_at(words, line=loader.line + 1)
        fetch()

    def checked_flow_start(token: type) -> None:
        check_depth()
        fetch_flow_start(token)

    def checked_indent(column: int) -> bool:
        check_depth()
        is_new: bool = add_indent(column)
        return is_new

    loader.fetch_more_tokens, loader.fetch_flow_collection_start = checked_fetch, checked_flow_start
    loader.add_indent = checked_indent


class _Nodes:
    """Converts YAML nodes to plain values. A node with several aliases is converted once."""

    def __init__(self, loader: yaml.SafeLoader, file: File) -> None:
        self._loader = loader
        self._file = file
        self._built: dict[int, tuple[Any, int]] = {}
        self._merged_fields = 0

    def value(self, node: yaml.Node, place: str, depth: int) -> tuple[Any, int]:
        """Return a node's value and its nesting depth."""
        value, height = self._built.get(id(node), (None, 0 if node.id == "scalar" else 1))
        if depth + height > MAX_DEPTH:
            words = f"is nested deeper than {MAX_DEPTH} levels, or holds itself; expected at most that."
            raise self._file.error_at(words, place, _line(node))
        if id(node) not in self._built:
            if (node.tag, node.id) == ("tag:yaml.org,2002:map", "mapping"):
                value, height = self._mapping(node, place, depth)
            elif (node.tag, node.id) == ("tag:yaml.org,2002:seq", "sequence"):
                value, height = self._sequence(node, place, depth)
            else:
                value, height = self._scalar(node, place), 0
            self._built[id(node)] = value, height
        return value, height

    def _mapping(self, node: yaml.MappingNode, place: str, depth: int) -> tuple[_LinedDict, int]:
        own, merged, highest = _LinedDict(), _LinedDict(), 1
        for key_node, value_node in node.value:
            name = str(key_node.value)[:60]  # the key of a node may be as long as the file
            inner = f"{place}.{name}" if place else name
            if key_node.tag == "tag:yaml.org,2002:merge":
                parts = value_node.value if value_node.id == "sequence" else [value_node]
                for part in reversed(parts):  # the first of several merged mappings takes precedence
                    value, height = self.value(part, inner, depth + 1)
                    if not isinstance(value, _LinedDict):
                        raise self._file.error_at("cannot be merged; expected keys and values.", inner, _line(part))
                    self._merged_fields += len(value)
                    if self._merged_fields > MAX_MERGED_FIELDS:
                        words = f"is merged into more than {MAX_MERGED_FIELDS:,} fields; expected at most that."
                        raise self._file.error_at(words, inner, _line(part))
                    merged.update(value)
                    merged.lines.update(value.lines)
                    highest = max(highest, height)
                continue
            if key_node.id != "scalar":
                raise self._file.error_at("has a key that is not a plain value; expected one.", place, _line(key_node))
            key = self._scalar(key_node, inner)
            if key in own:
                raise self._file.error_at("stands twice; remove one of the two.", inner, _line(key_node))
            own[key], height = self.value(value_node, inner, depth + 1)
            own.lines[key] = _line(value_node if value_node.id == "scalar" else key_node)
            highest = max(highest, height + 1)
        merged.update(own)
        merged.lines.update(own.lines)
        return merged, highest

    def _sequence(self, node: yaml.SequenceNode, place: str, depth: int) -> tuple[_LinedList, int]:
        values, highest = _LinedList(), 1
        for index, item in enumerate(node.value):
            value, height = self.value(item, f"{place}[{index}]", depth + 1)
            values.append(value)
            values.lines.append(_line(item))
            highest = max(highest, height + 1)
        return values, highest

    def _scalar(self, node: yaml.Node, place: str) -> Any:
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            raise self._file.error_at(f"has more than {MAX_DIGITS} digits; expected fewer.", place, _line(node))
        try:
            value = self._loader.construct_object(node, deep=True)
        except Exception as error:  # PyYAML passes on any error, such as KeyError for `!!bool maybe`
            words = " ".join(str(getattr(error, "problem", None) or error).split())
            raise self._file.error_at(f"is not a value: {words}. Correct it there.", place, _line(node)) from None
        return value


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1


# Texts.


class _Shown(reprlib.Repr):
    """`reprlib.Repr` that truncates long strings and deep values."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlong = self.maxother = 60

    def repr_str(self, x: str, level: int) -> str:
        del level
        return repr(x[:60])

    def repr__LinedDict(self, x: _LinedDict, level: int) -> str:  # noqa: N802
        return self.repr_dict(x, level)

    def repr__LinedList(self, x: _LinedList, level: int) -> str:  # noqa: N802
        return self.repr_list(x, level)


_SHOWN: Final = _Shown()


def _did_you_mean(word: object, words: Iterable[str]) -> str:
    close = difflib.get_close_matches(word[:60], sorted(words), n=1, cutoff=0.6) if isinstance(word, str) else []
    return f" Did you mean {close[0]!r}?" if close else ""


def _name(item: Any, named: Sequence[str]) -> str:
    texts = [item.get(key) for key in named] if isinstance(item, dict) else []
    known = [text for text in texts if isinstance(text, str) and text]
    return repr(" ".join(known)[:60]) if known and len(known) == len(named) else ""
