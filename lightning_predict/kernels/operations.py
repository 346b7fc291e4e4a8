"""The registry of operations: all that is known of each, in the one place where its family registers it.

An operation says its shape parameters, floating-point work and compulsory traffic, the dispatcher's calls that compute
it, what it is timed through where no model knows it, and the networks that do (`families/`). Formulas are pure
functions of numpy columns, one value per problem. A `Problem` is one operation at one shape and dtype; a `ProblemBatch`
is many shapes of one operation and dtype, which is what every kernel model takes. Example::

    >>> batch = problem_batch("linear", "float16", b=1, m=4096, n=4096, k=4096)
    >>> float(batch.flops[0]) / 1e9  # 2 x 4096^3
    137.438953472
    >>> float(batch.bytes_moved[0]) / 2**20  # three matrices of 4096 x 4096 x 2 bytes
    96.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from lightning_predict.errors import InvalidArgumentError, UnknownOperationError
from lightning_predict.gpus.records import Generation, Gpu
from lightning_predict.interval import Interval
from lightning_predict.tracing.trace import Flags, Operation

Array = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]
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
@dataclass(frozen=True, slots=True)
class Problem:
    """One operation at one shape: hashable, so that duplicates are predicted once.

    Attributes:
        operation: Name of an `OperationKind`.
        dtype: Compute dtype, a key of `COMPUTE_BYTES`.
        dims: Values of the kind's shape parameters, in their order.
    """

    operation: str
    dtype: str
    dims: tuple[float, ...]

    @property
    def shape(self) -> dict[str, float]:
        """Shape parameters by name."""
        return dict(zip(operation_kind(self.operation).shape, self.dims, strict=True))


@final
@dataclass(frozen=True, slots=True)
class CountedProblem:
    """A problem and how often it counts."""

    times: float
    problem: Problem


@final
@dataclass(frozen=True, slots=True)
class Rereads:
    """The traffic of a kernel that passes over its input several times.

    Attributes:
        transfer: Its traffic where it finds nothing in the L2 again.
        bytes_per_multiprocessor: Bytes that a multiprocessor works on at once.
    """

    transfer: Problem
    bytes_per_multiprocessor: float


NamedFeatures = Mapping[str, Array]
"""Feature name -> values of shape (gpus, problems), or (gpus, 1) and (1, problems) where one side does not matter."""

Translator = Callable[[Operation, Flags], tuple[Problem, ...] | None]
"""The problems that a recorded call computes; None for a call that it does not know."""


def _as_it_is(batch: ProblemBatch) -> ProblemBatch:
    return batch


def _by_data_sheet(gpu: Gpu) -> Gpu:
    return gpu


def _without_doubt(_gpu: Gpu, _dtype: str) -> float:
    return 0.0


def _no_doubt_above(batch: ProblemBatch) -> Array:
    return np.ones(len(batch))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Operations that share one network, in the dtypes that it serves.

    Attributes:
        name: Its name in weights files.
        dtypes: Compute dtypes that it serves.
        describe: Features of a batch on GPUs.
        growing: Shape parameters that whoever computes may pad: no problem takes much longer than one with one of them
            doubled (`models.held_by_monotonicity`).
        floor: Least seconds of problems that a rule of their own slows down, shape (gpus, problems), 0 for the others;
            these are not held to larger ones.
        built_for: The problems whose kernels run these, where kernels are built for some sizes alone and compute others
            as the next larger one.
        doubt_above: Extra factor upwards for problems that libraries may have poor kernels for, shape (problems,).
        unmeasured: The GPU as the base sees it, which serves those without measurements of their own.
        doubt: Half width in log(seconds) of what that view may be off, for a GPU and dtype.
    """

    name: str
    dtypes: tuple[str, ...]
    describe: Callable[[ProblemBatch, Sequence[Gpu]], NamedFeatures]
    growing: tuple[str, ...] = ()
    floor: Callable[[ProblemBatch, Sequence[Gpu]], Array] | None = None
    built_for: Callable[[ProblemBatch], ProblemBatch] = _as_it_is
    doubt_above: Callable[[ProblemBatch], Array] = _no_doubt_above
    unmeasured: Callable[[Gpu], Gpu] = _by_data_sheet
    doubt: Callable[[Gpu, str], float] = _without_doubt

    def least_seconds(self, batch: ProblemBatch, gpus: Sequence[Gpu]) -> Array:
        """Return the seconds of `floor`, shape (gpus, problems)."""
        return np.zeros((len(gpus), len(batch))) if self.floor is None else self.floor(batch, gpus)

    @property
    def operations(self) -> tuple[str, ...]:
        """List the operations that it serves, in the order in which they were registered."""
        return tuple(kind.name for kind in _KINDS.values() if self in kind.families)

    def described(self, batch: ProblemBatch, gpus: Sequence[Gpu]) -> tuple[tuple[str, ...], npt.NDArray[np.float32]]:
        """Return names of the features, and their values in that order as float32, shape (gpus, problems, features)."""
        named = self.describe(batch, gpus)
        matrix = np.empty((len(gpus), len(batch), len(named)), dtype=np.float32)
        for index, values in enumerate(named.values()):
            matrix[:, :, index] = values
        return tuple(named), matrix

    def feature_names(self, batch: ProblemBatch, gpus: Sequence[Gpu]) -> tuple[str, ...]:
        """List names in the order of the last axis of `feature_matrix`."""
        return tuple(self.describe(batch, gpus))

    def feature_matrix(self, batch: ProblemBatch, gpus: Sequence[Gpu]) -> npt.NDArray[np.float32]:
        """Return the features as float32, shape (gpus, problems, features)."""
        return self.described(batch, gpus)[1]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another algorithm for an operation.

    Attributes:
        problem: What it computes instead; None for a problem that it cannot.
        is_on: Whether libraries have it on a generation of GPUs.
        bounds_networks: The operation never takes longer than it, on no GPU; else that counts only where no measurement
            of the GPU was seen.
    """

    problem: Callable[[Problem], Problem | None]
    is_on: Callable[[Generation], bool] = lambda _: True
    bounds_networks: bool = False


def _no_problem(_problem: Problem) -> bool:
    return False


def _every_problem(_problem: Problem) -> bool:
    return True


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """Times an operation by its tiles, caches or instructions; used with trained networks only.

    Attributes:
        seconds: Seconds with the ends of their interval, shape (gpus, problems).
        comes_first: Problems that the operation's networks never saw, so that the formula times them though there are
            some.
        knows: Problems that it times.
    """

    seconds: Callable[[ProblemBatch, Sequence[Gpu]], Interval[Array]]
    comes_first: Callable[[Problem], bool] = _no_problem
    knows: Callable[[Problem], bool] = _every_problem


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Untrained:
    """How an operation without a model stands to its roofline.

    Attributes:
        utilisation: Share that its kernels reach; what is typical of its units where None.
        spread: Factor up and down around the time; the usual one where None.
        sequential_kernels: Kernels that must wait for each other, each at least the shortest there is; None for one.
    """

    utilisation: float | None = None
    spread: float | None = None
    sequential_kernels: Callable[[Columns], Array] | None = None


def _reads_once(_problem: Problem) -> Rereads | None:
    return None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What an operation takes at least besides its compulsory traffic and arithmetic.

    Attributes:
        latency: Seconds that instructions and waiting take on a GPU, shape (problems,).
        rereads: What a problem moves that reads its input again and again; None for one that does not.
    """

    latency: Callable[[ProblemBatch, Gpu], Array]
    rereads: Callable[[Problem], Rereads | None] = _reads_once


def _nothing(c: Columns) -> Array:
    return np.zeros_like(next(iter(c.values())))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OperationKind:
    """All that is known of one operation; formulas take columns of shape (problems,) and give one.

    Attributes:
        name: Its name in `operator_seconds` and in the measurement tables.
        shape: Shape parameters that every problem has, in the order of `Problem.dims`.
        defaults: Shape parameters that may be left out, with their value; a string names another one to copy.
        spellings: Other names that people give, mapped to what they set: `{"image_size": ("height", "width")}`.
        units: `tensor` where matrix units can do the work, `vector` where only the ordinary lanes can, `link` for
            copies over the host link, `fabric` for messages between GPUs.
        flops: Floating-point operations of the textbook algorithm (a multiply-add is two).
        least_flops: Fewest floating-point operations of any algorithm in use; the textbook's where None.
        reads: Elements that must be read at least once.
        writes: Elements that must be written at least once.
        element_bytes: Bytes of one element where the dtype does not decide it (a copy counted in bytes).
        aten: Dispatcher's calls that compute this operation and nothing else.
        translator: Gives the problems of such a call from this operation's name, the call and the trace's flags. Calls
            that compute several operations are registered by `translates` instead.
        families: Networks that serve it, each in its own dtypes.
        reduces_rows: Its kernels keep a whole row of (rows, cols) together.
        proxy: Problems whose times add up to its own, where it has no network.
        alternative: Another algorithm that libraries always have.
        formula: Times it where no network does; it comes before the proxy.
        untrained: What its kernels reach of the roofline, where that is not what is typical of its units.
        floor: What it takes at least besides its memory traffic and arithmetic (`roofline.latencies`).
    """

    name: str
    shape: tuple[str, ...]
    units: Literal["tensor", "vector", "link", "fabric"]
    flops: Callable[[Columns], Array]
    reads: Callable[[Columns], Array]
    writes: Callable[[Columns], Array] = _nothing
    defaults: Mapping[str, float | str] = field(default_factory=dict)
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    least_flops: Callable[[Columns], Array] | None = None
    element_bytes: float | None = None
    aten: tuple[str, ...] = ()
    translator: Callable[[str, Operation, Flags], tuple[Problem, ...] | None] | None = None
    families: tuple[Family, ...] = ()
    reduces_rows: bool = False
    proxy: Callable[[Problem], tuple[CountedProblem, ...]] | None = None
    alternative: Alternative | None = None
    formula: Formula | None = None
    untrained: Untrained | None = None
    floor: Floor | None = None


@final
@dataclass(frozen=True)
class ProblemBatch:
    """Many shapes of one operation and dtype, one numpy column per shape parameter, all of the same length."""

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
        """Count floating-point operations, shape (problems,)."""
        return np.asarray(self.kind.flops(self.columns), dtype=np.float64)

    @cached_property
    def least_flops(self) -> Array:
        """Count floating-point operations that no algorithm in use goes below, shape (problems,)."""
        least = self.kind.least_flops
        return self.flops if least is None else np.asarray(least(self.columns), dtype=np.float64)

    @property
    def element_bytes(self) -> float:
        """Bytes of one element."""
        fixed = self.kind.element_bytes
        return COMPUTE_BYTES[self.dtype] if fixed is None else fixed

    @cached_property
    def bytes_read(self) -> Array:
        """Count bytes that must be read at least once, shape (problems,)."""
        return np.asarray(self.kind.reads(self.columns), dtype=np.float64) * self.element_bytes

    @cached_property
    def bytes_written(self) -> Array:
        """Count bytes that must be written at least once, shape (problems,)."""
        return np.asarray(self.kind.writes(self.columns), dtype=np.float64) * self.element_bytes

    @cached_property
    def bytes_moved(self) -> Array:
        """Count compulsory traffic in bytes: each input read once, each output written once, shape (problems,)."""
        return self.bytes_read + self.bytes_written


_KINDS: Final[dict[str, OperationKind]] = {}
_TRANSLATORS: Final[dict[str, Translator]] = {}


def register(*kinds: OperationKind) -> None:
    """Add operations to the registry, with the translators of their calls.

    Raises:
        InvalidArgumentError: An operation of that name, or a translator of one of its calls, is there already; a
            default is for a shape parameter that it does not have; or it names calls without a translator.
    """
    for kind in kinds:
        if kind.name in _KINDS:
            raise InvalidArgumentError(f"Operation kind {kind.name!r} is registered twice; give one another name.")
        strangers = set(kind.defaults) - set(kind.shape)
        if strangers:
            raise InvalidArgumentError(
                f"Operation kind {kind.name!r} has defaults for {sorted(strangers)}, which are not among its shape "
                f"parameters {list(kind.shape)}."
            )
        if bool(kind.aten) != (kind.translator is not None):
            raise InvalidArgumentError(
                f"Operation kind {kind.name!r} has {'calls' if kind.aten else 'a translator'} alone; give `aten` and "
                "`translator` together."
            )
        if kind.translator is not None:
            translates(*kind.aten)(partial(kind.translator, kind.name))
        _KINDS[kind.name] = kind


@contextmanager
def registrations() -> Iterator[None]:
    """Forget at the end what was registered within: a test's operations are no other test's."""
    tables: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        (_KINDS, dict(_KINDS)),
        (_TRANSLATORS, dict(_TRANSLATORS)),
    )
    try:
        yield
    finally:
        for table, before in tables:
            table.clear()
            table.update(before)


def by_bytes(name: str) -> OperationKind:
    """Make an operation that is known by its FLOPs and the bytes that it moves, whatever its tensors are."""
    return OperationKind(
        name=name,
        shape=("read_bytes", "write_bytes", "flops"),
        defaults={"read_bytes": 0, "write_bytes": 0, "flops": 0},
        units="vector",
        flops=lambda c: c["flops"],
        reads=lambda c: c["read_bytes"],
        writes=lambda c: c["write_bytes"],
        element_bytes=1,
    )


ON_SPARSE_TENSORS: Final = "any call on sparse tensors"
"""In place of a call's name: what computes on stored elements alone follows them, whatever the call."""


def translates(*calls: str) -> Callable[[Translator], Translator]:
    """Register a translator for these of the dispatcher's calls.

    Raises:
        InvalidArgumentError: One of them has a translator already.
    """

    def add(translator: Translator) -> Translator:
        for call in calls:
            if call in _TRANSLATORS:
                raise InvalidArgumentError(f"Operation {call!r} has a translator already; it cannot have a second one.")
            _TRANSLATORS[call] = translator
        return translator

    return add


def translator_of(call: str) -> Translator | None:
    """Find the translator of one of the dispatcher's calls; None if its bytes are all that is known."""
    return _TRANSLATORS.get(call)


def families() -> Mapping[str, Family]:
    """Return all families of networks by name, in the order in which their operations were registered."""
    return {family.name: family for kind in _KINDS.values() for family in kind.families}


def family_of(operation: str, dtype: str) -> Family | None:
    """Find the family that serves an operation in a dtype; None if there is none."""
    kind = _KINDS.get(operation)
    for family in () if kind is None else kind.families:
        if dtype in family.dtypes:
            return family
    return None


def proxies_of(problem: Problem) -> tuple[CountedProblem, ...]:
    """Find the parts whose times add up to the problem's; none if it is timed by a model or not at all."""
    proxy = operation_kind(problem.operation).proxy
    return () if proxy is None else proxy(problem)


def operation_names() -> tuple[str, ...]:
    """List all operations with a time, sorted."""
    return tuple(sorted(_KINDS))


def operation_kind(name: str) -> OperationKind:
    """Find an operation by its name.

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
    """Build columns for an operation from shape parameters, scalars or arrays that broadcast to one length.

    Raises:
        UnknownOperationError: The operation is not known, or it has no such shape parameter, or one is missing.
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
        columns = np.broadcast_arrays(*(arrays[word] for word in kind.shape))
    except ValueError:
        lengths = {word: array.shape for word, array in arrays.items()}
        raise InvalidArgumentError(
            f"Shape parameters of {operation!r} have lengths that do not broadcast: {lengths}. Give scalars or "
            "arrays of one length."
        ) from None
    return ProblemBatch(operation, dtype, {w: column.ravel() for w, column in zip(kind.shape, columns, strict=True)})


def batch_of(problems: Sequence[Problem]) -> ProblemBatch:
    """Collect columns of problems that share one operation and one dtype."""
    first = problems[0]
    values = np.array([problem.dims for problem in problems], dtype=np.float64)
    shape = operation_kind(first.operation).shape
    return ProblemBatch(first.operation, first.dtype, {name: values[:, i] for i, name in enumerate(shape)})


def problem(operation: str, dtype: str, **words: float) -> Problem:
    """Build one problem from shape parameters; errors as for `problem_batch`."""
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
    expanded |= {word: value for word, value in words.items() if word in kind.shape}
    strangers = [word for word in words if word not in kind.shape and word not in spellings]
    missing = [word for word in kind.shape if word not in expanded and word not in kind.defaults]
    if strangers or missing:
        problems = [f"does not take {strangers}"] if strangers else []
        problems += [f"needs {missing}"] if missing else []
        raise UnknownOperationError(
            f"Operation {kind.name!r} {' and '.join(problems)}. Its shape parameters: {_describe(kind)}."
        )
    return expanded


def _describe(kind: OperationKind) -> str:
    words = [f"{word}={kind.defaults[word]}" if word in kind.defaults else word for word in kind.shape]
    short = [f"{spelling} (sets {', '.join(targets)})" for spelling, targets in (kind.spellings or {}).items()]
    return ", ".join(words + short)


def _check_values(operation: str, kind: OperationKind, arrays: Mapping[str, Array]) -> None:
    for word in kind.shape:
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
