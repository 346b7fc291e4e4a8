"""The operations that have a time: their shape words, floating-point work and compulsory traffic.

A `Problem` is one operation at one shape and dtype; a `ProblemBatch` is many shapes of one operation and dtype as
numpy columns, which is what every kernel model takes. Formulas are pure functions of the columns. Example::

    >>> batch = problem_batch("linear", "float16", b=1, m=4096, n=4096, k=4096)
    >>> float(batch.flops[0]) / 1e9  # 2 x 4096^3
    137.438953472
    >>> float(batch.bytes_moved[0]) / 2**20  # three matrices of 4096 x 4096 x 2 bytes
    96.0

Add an operation by adding one `OperationKind` to the file of its family (`matmul.py`, `convolution.py`, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, final

import numpy as np
import numpy.typing as npt

from lightning_predict.errors import InvalidArgumentError, UnknownOperationError

Array = npt.NDArray[np.float64]
Columns = Mapping[str, Array]

COMPUTE_BYTES: Final[Mapping[str, float]] = {
    "float64": 8,
    "float32": 4,
    "tf32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8": 1,
    "int8": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of one element by compute dtype. `tf32` is float32 data whose matmuls run in TF32."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OperationKind:
    """What one operation needs at least, whoever computes it.

    Attributes:
        name: Its name in `operator_seconds` and in the measurement tables.
        words: Shape words that every problem has, in the order of `Problem.dims`.
        defaults: Words that may be left out, with their value; a string names another word to copy.
        units: `tensor` where matrix units can do the work, `vector` where only the ordinary lanes can, `link` for
            copies over the host link, `fabric` for messages between GPUs.
        flops: Floating-point operations of the textbook algorithm (a multiply-add is two).
        elements_moved: Elements that must be read or written at least once.
        least_flops: Fewest floating-point operations of any algorithm in use; the textbook's where None.
        fixed_element_bytes: Bytes of one element where the dtype does not decide it (a copy counted in bytes).
        spellings: Other words that people give, mapped to the words they set: `{"image_size": ("height", "width")}`.
        typical_utilisation: Share of the roofline that its kernels reach, where no model was trained and it is not
            what is typical of its units; None where it is.
        typical_spread: Factor up and down around a time from that utilisation; None for the usual one.
        sequential_kernels: Kernels that must wait for each other, each at least the shortest there is; None for one.
    """

    name: str
    words: tuple[str, ...]
    units: Literal["tensor", "vector", "link", "fabric"]
    flops: Callable[[Columns], Array]
    elements_moved: Callable[[Columns], Array]
    defaults: Mapping[str, float | str]
    least_flops: Callable[[Columns], Array] | None = None
    fixed_element_bytes: float | None = None
    spellings: Mapping[str, tuple[str, ...]] | None = None
    typical_utilisation: float | None = None
    typical_spread: float | None = None
    sequential_kernels: Callable[[Columns], Array] | None = None


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """One operation at one shape: hashable, so that duplicates are predicted once.

    Attributes:
        operation: Name of an `OperationKind`.
        dtype: Compute dtype, a key of `COMPUTE_BYTES`.
        dims: Values of the kind's `words`, in their order.
    """

    operation: str
    dtype: str
    dims: tuple[float, ...]


@final
@dataclass(frozen=True)
class ProblemBatch:
    """Many shapes of one operation and dtype, one numpy column a shape word, all of the same length."""

    operation: str
    dtype: str
    columns: Columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def kind(self) -> OperationKind:
        """The operation's formulas."""
        return operation_kind(self.operation)

    @cached_property
    def flops(self) -> Array:
        """Floating-point operations, shape (problems,)."""
        return np.asarray(self.kind.flops(self.columns), dtype=np.float64)

    @cached_property
    def least_flops(self) -> Array:
        """Floating-point operations that no algorithm in use goes below, shape (problems,)."""
        least = self.kind.least_flops
        return self.flops if least is None else np.asarray(least(self.columns), dtype=np.float64)

    @cached_property
    def bytes_moved(self) -> Array:
        """Compulsory traffic in bytes: each input read once, each output written once, shape (problems,)."""
        fixed = self.kind.fixed_element_bytes
        element_bytes = COMPUTE_BYTES[self.dtype] if fixed is None else fixed
        return np.asarray(self.kind.elements_moved(self.columns), dtype=np.float64) * element_bytes


_KINDS: dict[str, OperationKind] = {}


def register(*kinds: OperationKind) -> None:
    """Add kinds to the table.

    Raises:
        InvalidArgumentError: A kind of that name is there already, or a default is for a word it does not have.
    """
    for kind in kinds:
        if kind.name in _KINDS:
            raise InvalidArgumentError(f"Operation kind {kind.name!r} is registered twice; give one another name.")
        strangers = set(kind.defaults) - set(kind.words)
        if strangers:
            raise InvalidArgumentError(
                f"Operation kind {kind.name!r} has defaults for {sorted(strangers)}, which are not among its words "
                f"{list(kind.words)}."
            )
        _KINDS[kind.name] = kind


def operation_names() -> tuple[str, ...]:
    """All operations with a time, sorted."""
    return tuple(sorted(_KINDS))


def operation_kind(name: str) -> OperationKind:
    """The formulas of an operation.

    Raises:
        UnknownOperationError: No such operation; the message lists those there are.
    """
    kind = _KINDS.get(name)
    if kind is None:
        raise UnknownOperationError(
            f"Operation {name!r} is not known. Known operations: {', '.join(operation_names())}."
        )
    return kind


def problem_batch(
    operation: str, dtype: str, **words: float | Sequence[float] | npt.NDArray[np.generic]
) -> ProblemBatch:
    """Columns for an operation from shape words, scalars or arrays that broadcast to one length.

    Raises:
        UnknownOperationError: The operation is not known, or it has no such word, or a word is missing.
        InvalidArgumentError: An unknown dtype, or a value that is not a positive finite number.
    """
    kind = operation_kind(operation)
    if dtype not in COMPUTE_BYTES:
        raise InvalidArgumentError(f"dtype {dtype!r} is not known. Known dtypes: {', '.join(COMPUTE_BYTES)}.")
    given = _expand(kind, words)
    arrays = {word: np.atleast_1d(np.asarray(value, dtype=np.float64)) for word, value in given.items()}
    for word, value in kind.defaults.items():
        if word not in arrays:
            arrays[word] = arrays[value] if isinstance(value, str) else np.array([float(value)])
    _check_values(operation, kind, arrays)
    try:
        columns = np.broadcast_arrays(*(arrays[word] for word in kind.words))
    except ValueError:
        lengths = {word: array.shape for word, array in arrays.items()}
        raise InvalidArgumentError(
            f"Shape words of {operation!r} have lengths that do not broadcast: {lengths}. Give scalars or arrays of "
            "one length."
        ) from None
    return ProblemBatch(operation, dtype, {w: column.ravel() for w, column in zip(kind.words, columns, strict=True)})


def batch_of(problems: Sequence[Problem]) -> ProblemBatch:
    """Columns of problems that share one operation and one dtype."""
    first = problems[0]
    values = np.array([problem.dims for problem in problems], dtype=np.float64)
    words = operation_kind(first.operation).words
    return ProblemBatch(first.operation, first.dtype, {word: values[:, i] for i, word in enumerate(words)})


def problem(operation: str, dtype: str, **words: float) -> Problem:
    """One problem from shape words; errors as for `problem_batch`."""
    batch = problem_batch(operation, dtype, **words)
    return Problem(operation, dtype, tuple(float(column[0]) for column in batch.columns.values()))


def _expand(
    kind: OperationKind, words: Mapping[str, float | Sequence[float] | npt.NDArray[np.generic]]
) -> dict[str, float | Sequence[float] | npt.NDArray[np.generic]]:
    """Replace spellings by the words they set, and refuse strangers and gaps."""
    spellings = kind.spellings or {}
    expanded: dict[str, float | Sequence[float] | npt.NDArray[np.generic]] = {}
    for word, value in words.items():
        for target in spellings.get(word, (word,)):
            expanded.setdefault(target, value)
    # A word given by its own name wins over a spelling that covers it.
    expanded |= {word: value for word, value in words.items() if word in kind.words}
    strangers = [word for word in words if word not in kind.words and word not in spellings]
    missing = [word for word in kind.words if word not in expanded and word not in kind.defaults]
    if strangers or missing:
        problems = [f"does not take {strangers}"] if strangers else []
        problems += [f"needs {missing}"] if missing else []
        raise UnknownOperationError(
            f"Operation {kind.name!r} {' and '.join(problems)}. Its shape words: {_describe(kind)}."
        )
    return expanded


def _describe(kind: OperationKind) -> str:
    words = [f"{word}={kind.defaults[word]}" if word in kind.defaults else word for word in kind.words]
    short = [f"{spelling} (sets {', '.join(targets)})" for spelling, targets in (kind.spellings or {}).items()]
    return ", ".join(words + short)


def _check_values(operation: str, kind: OperationKind, arrays: Mapping[str, Array]) -> None:
    for word in kind.words:
        values = arrays[word]
        zero_allowed = (word in kind.defaults and kind.defaults[word] == 0) or word.startswith(
            ("padding", "read", "write")
        )
        smallest = 0.0 if zero_allowed else 1.0
        wrong = values[~(np.isfinite(values) & (values >= smallest))]
        if wrong.size:
            raise InvalidArgumentError(
                f"Operation {operation!r} got {word}={wrong[0]:g}; expected a finite number of at least {smallest:g}."
            )
