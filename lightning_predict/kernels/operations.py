"""Registry of operations. The family of an operation registers all of its properties in one place.

The properties are shape parameters, FLOPs, minimum memory traffic, the dispatcher calls that compute the operation,
neural networks (`families/`), and a surrogate for operations without a network. Formulas are pure functions of NumPy
columns, which have one value per shape. An `OperationShape` is one operation with its shape and dtype. A `ShapeBatch`
contains many shapes of one operation and dtype, and is the input of every kernel model. Example::

    >>> batch = shape_batch("linear", "float16", b=1, m=4096, n=4096, k=4096)
    >>> float(batch.flops[0]) / 1e9  # 2 x 4096^3
    137.438953472
    >>> float(batch.bytes_moved[0]) / 2**20  # three matrices of 4096 x 4096 x 2 bytes
    96.0
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError, UnknownOperationError
from lightning_predict.base.interval import Interval
from lightning_predict.hardware.records import Gpu
from lightning_predict.record.trace import Flags, Operation

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

BACKWARD_MATMULS: Final = 2  # Matmuls of the backward pass for one of the forward: gradients of input and weight

COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast")
"""Operations of several GPUs, which `families/collective.py` times."""


@dataclass(frozen=True, slots=True)
class OperationShape:
    """One operation at one shape and dtype; hashable, so that duplicates are predicted once."""

    operation: str  # Name of an `OperationSpec`
    dtype: str  # Compute dtype, a key of `COMPUTE_BYTES`
    dims: tuple[float, ...]  # Values of the operation's shape parameters, in order

    @property
    def parameters(self) -> dict[str, float]:
        """Shape parameters by name."""
        return dict(zip(operation_spec(self.operation).shape, self.dims, strict=True))


@dataclass(frozen=True, slots=True)
class CountedShape:
    """Operation with its shape and dtype, and the number of times that it runs."""

    times: float
    shape: OperationShape


NamedFeatures = Mapping[str, Array]  # Arrays by feature name, (gpus, shapes); the length is 1 without influence

Translator = Callable[[Operation, Flags], tuple[OperationShape, ...] | None]
"""Function that returns the operations, with shapes, of a recorded call; None if it does not support the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSpec:
    """Operations that share one neural network, in the dtypes that the network supports."""

    name: str
    dtypes: tuple[str, ...]
    describe: Callable[[ShapeBatch, Sequence[Gpu]], NamedFeatures]  # Computes the features of a batch on GPUs
    # Minimum seconds of shapes for which slow kernels are known, shape (gpus, shapes); 0 for others
    floor: Callable[[ShapeBatch, Sequence[Gpu]], Array] | None = None
    # Additional factor to the upper interval end for shapes whose library kernels may be slow, shape (shapes,)
    upper_interval_factor: Callable[[ShapeBatch], Array] = lambda batch: np.ones(len(batch))
    # Returns the GPU description that the base network gets for GPUs without measurements
    unmeasured: Callable[[Gpu], Gpu] = lambda gpu: gpu
    # Half width in log(seconds) of the error of this GPU description, for a GPU and dtype
    log_uncertainty: Callable[[Gpu, str], float] = lambda _gpu, _dtype: 0.0

    def least_seconds(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> Array:
        """Return the seconds of `floor`, shape (gpus, shapes)."""
        return np.zeros((len(gpus), len(batch))) if self.floor is None else self.floor(batch, gpus)

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of the operations, in order of registration."""
        _load()
        names = ((spec.name, network.name) for spec in _SPECS.values() for network in spec.of(NetworkSpec))
        return tuple(operation for operation, network in names if network == self.name)

    def described(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> tuple[tuple[str, ...], npt.NDArray[np.float32]]:
        """Return the feature names, and their float32 values in the same order, shape (gpus, shapes, features)."""
        named = self.describe(batch, gpus)
        matrix = np.empty((len(gpus), len(batch), len(named)), dtype=np.float32)
        for index, values in enumerate(named.values()):
            matrix[:, :, index] = values
        return tuple(named), matrix

    def feature_names(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> tuple[str, ...]:
        """Return the names along the last axis of `feature_matrix`."""
        return tuple(self.describe(batch, gpus))

    def feature_matrix(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> npt.NDArray[np.float32]:
        """Return the features as float32, shape (gpus, shapes, features)."""
        return self.described(batch, gpus)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Alternative algorithm for an operation."""

    # Returns the operation that the algorithm computes instead; None if the algorithm does not apply
    shape: Callable[[OperationShape], OperationShape | None]
    is_on: Callable[[Gpu], bool] = lambda _: True  # Whether libraries provide the algorithm on a GPU
    # Whether the time of the algorithm is an upper bound on all GPUs; otherwise only on GPUs without measurements
    bounds_networks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """Predicts an operation's time from tiles, caches or instructions, only together with trained networks."""

    seconds: Callable[[ShapeBatch, Sequence[Gpu]], Interval[Array]]  # Seconds and their interval, shape (gpus, shapes)
    supports: Callable[[OperationShape], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Predicts an operation's time as the sum of the times of other operations, which `parts` returns."""

    parts: Callable[[OperationShape], tuple[CountedShape, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineEfficiency:
    """Efficiency of an operation without a model, relative to its roofline."""

    spread: float | None = None  # Factor to either end of the interval; None uses the default
    # Number of dependent kernels, each with at least the minimum kernel time; None means one kernel
    sequential_kernels: Callable[[Columns], Array] | None = None
    share: float | None = None  # Share of the roofline that the operation reaches; None: the typical share of its units


Estimator = NetworkSpec | Formula | Surrogate | Alternative | RooflineEfficiency
_Kind = TypeVar("_Kind", bound=Estimator)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSpec:
    """All properties of one operation. Formulas map columns of shape (shapes,) to an array of the same shape."""

    name: str  # Name in `operator_seconds` and in the measurement tables
    shape: tuple[str, ...]  # Names of the shape parameters, in the order of `OperationShape.dims`
    # `tensor` if tensor cores can do the work, `vector` if only CUDA cores can, `link` for copies over the host link,
    # `fabric` for communication between GPUs
    units: Literal["tensor", "vector", "link", "fabric"]
    flops: Callable[[Columns], Array]  # FLOPs of the textbook algorithm (a multiply-add counts as two)
    reads: Callable[[Columns], Array]  # Elements that must be read at least once
    # Elements that must be written at least once
    writes: Callable[[Columns], Array] = lambda c: np.zeros_like(next(iter(c.values())))
    # Default values of shape parameters. A string means the value of another parameter.
    defaults: Mapping[str, float | str] = field(default_factory=dict)
    # Alternative names, mapped to the parameters that they set: `{"image_size": ("height", "width")}`.
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Minimum FLOPs of any algorithm in use; None for the FLOPs of the textbook algorithm
    minimum_flops: Callable[[Columns], Array] | None = None
    element_bytes: float | None = None  # Bytes of one element, if independent of the dtype (a copy counted in bytes)
    aten: tuple[str, ...] = ()  # Dispatcher calls that compute exactly this operation
    # Returns the operations with shapes, from the name of this operation, a call in `aten`, and the flags of the trace.
    # Calls that compute several operations are registered with `translates` instead.
    translator: Callable[[str, Operation, Flags], tuple[OperationShape, ...] | None] | None = None
    reduces_rows: bool = False  # Whether the kernels keep a whole row of (rows, cols) together
    # Ways to predict the time, in order: the first that supports a shape does. Before a surrogate, a network of a
    # sibling dtype is tried. An `Alternative` is an upper bound on what precedes it. The roofline comes last, at its
    # typical efficiency if there is no `RooflineEfficiency`.
    estimators: tuple[Estimator, ...] = ()
    # Minimum seconds on a GPU for instructions and waiting, shape (shapes,); None without such a limit
    latency: Callable[[ShapeBatch, Gpu], Array] | None = None

    def of(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        """Return the estimators of a kind, in order."""
        return tuple([estimator for estimator in self.estimators if isinstance(estimator, kind)])


@dataclass(frozen=True)
class ShapeBatch:
    """Many shapes of one operation and dtype, with a NumPy column per shape parameter, all of the same length."""

    operation: str
    dtype: str
    columns: Columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def spec(self) -> OperationSpec:
        """The operation's properties."""
        return operation_spec(self.operation)

    @cached_property
    def flops(self) -> Array:
        """Floating-point operations, shape (shapes,)."""
        return np.asarray(self.spec.flops(self.columns), dtype=np.float64)

    @cached_property
    def minimum_flops(self) -> Array:
        """Minimum floating-point operations of any algorithm in use, shape (shapes,)."""
        least = self.spec.minimum_flops
        return self.flops if least is None else np.asarray(least(self.columns), dtype=np.float64)

    @property
    def element_bytes(self) -> float:
        """Bytes of one element."""
        fixed = self.spec.element_bytes
        return COMPUTE_BYTES[self.dtype] if fixed is None else fixed

    @cached_property
    def bytes_read(self) -> Array:
        """Bytes that must be read at least once, shape (shapes,)."""
        return np.asarray(self.spec.reads(self.columns), dtype=np.float64) * self.element_bytes

    @cached_property
    def bytes_written(self) -> Array:
        """Bytes that must be written at least once, shape (shapes,)."""
        return np.asarray(self.spec.writes(self.columns), dtype=np.float64) * self.element_bytes

    @cached_property
    def bytes_moved(self) -> Array:
        """Minimum traffic in bytes: each input read once, each output written once, shape (shapes,)."""
        return self.bytes_read + self.bytes_written


_SPECS: Final[dict[str, OperationSpec]] = {}
_TRANSLATORS: Final[dict[str, Translator]] = {}
_NOT_LOADED: Final[list[tuple[re.Pattern[str], Callable[[], object]]]] = []


def load_when_asked(names: str, load: Callable[[], object]) -> None:
    """Register operations later: `load` runs when an operation or call is asked for that `names`, a regex, finds."""
    _NOT_LOADED.append((re.compile(names), load))


def _load(asked: str | None = None) -> None:
    """Load the operations that `asked` may belong to; all operations if it is None."""
    for entry in [row for row in _NOT_LOADED if asked is None or row[0].search(asked)]:
        entry[1]()  # another thread may load at the same time: both wait for the import
        if entry in _NOT_LOADED:
            _NOT_LOADED.remove(entry)


def register(*specs: OperationSpec) -> None:
    """Add operations to the registry, with the translators of their calls."""
    for spec in specs:
        if spec.name in _SPECS:
            raise InvalidArgumentError(f"Operation {spec.name!r} is registered twice; give one another name.")
        strangers = set(spec.defaults) - set(spec.shape)
        if strangers:
            raise InvalidArgumentError(
                f"Operation {spec.name!r} has defaults for {sorted(strangers)}, which are not among its shape "
                f"parameters {list(spec.shape)}."
            )
        if bool(spec.aten) != (spec.translator is not None):
            raise InvalidArgumentError(
                f"Operation {spec.name!r} has {'calls' if spec.aten else 'a translator'} alone; give `aten` and "
                "`translator` together."
            )
        if spec.translator is not None:
            translates(*spec.aten)(partial(spec.translator, spec.name))
        _SPECS[spec.name] = spec


@contextmanager
def registrations() -> Iterator[None]:
    """Context manager that removes all operations registered inside it, so that tests do not affect each other."""
    _load()  # modules run once, so nothing may be registered by an import inside
    specs, translators = dict(_SPECS), dict(_TRANSLATORS)
    try:
        yield
    finally:
        _SPECS.clear()
        _SPECS.update(specs)
        _TRANSLATORS.clear()
        _TRANSLATORS.update(translators)


def by_bytes(name: str) -> OperationSpec:
    """Return an operation that is defined by its FLOPs and the bytes that it moves, without any tensors."""
    return OperationSpec(
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
"""Registry key for calls on sparse tensors, whose work depends on the number of stored elements."""


def translates(*calls: str) -> Callable[[Translator], Translator]:
    """Register a translator for dispatcher calls."""

    def add(translator: Translator) -> Translator:
        for call in calls:
            if call in _TRANSLATORS:
                raise InvalidArgumentError(f"Operation {call!r} has a translator already; it cannot have a second one.")
            _TRANSLATORS[call] = translator
        return translator

    return add


def translator_of(call: str) -> Translator | None:
    """Return the translator of a dispatcher call; None if only the bytes of the call are known."""
    if call not in _TRANSLATORS:
        _load(call)
    return _TRANSLATORS.get(call)


def network_specs() -> Mapping[str, NetworkSpec]:
    """Return all families that have neural networks by name, sorted."""
    _load()
    networks = {network.name: network for spec in _SPECS.values() for network in spec.of(NetworkSpec)}
    return dict(sorted(networks.items()))


def network_spec(operation: str, dtype: str) -> NetworkSpec | None:
    """Return the family whose neural network supports an operation in a dtype; None without such a family."""
    spec = _find(operation)
    for network in () if spec is None else spec.of(NetworkSpec):
        if dtype in network.dtypes:
            return network
    return None


def surrogates_of(shape: OperationShape) -> tuple[CountedShape, ...]:
    """Return the surrogates of an operation, whose times add up to the operation's time; empty without a surrogate."""
    return next((surrogate.parts(shape) for surrogate in operation_spec(shape.operation).of(Surrogate)), ())


def operation_names() -> tuple[str, ...]:
    """Return the names of all operations, sorted."""
    _load()
    return tuple(sorted(_SPECS))


def operation_spec(name: str) -> OperationSpec:
    """Return an operation by name."""
    try:
        return _SPECS[name]
    except (KeyError, TypeError):  # of a family that is not loaded, unknown, or no text
        spec = _find(name)
    if spec is None:
        raise UnknownOperationError(
            f"Operation {shown(name)} is not known. Known operations: {', '.join(operation_names())}."
        )
    return spec


def _find(name: object) -> OperationSpec | None:
    if not isinstance(name, str):
        return None
    if name not in _SPECS:
        _load(name)
    return _SPECS.get(name)


def shape_batch(operation: str, dtype: str, **words: float | Sequence[float] | npt.NDArray[np.generic]) -> ShapeBatch:
    """Build a batch of shapes of one operation. Shape parameters are scalars or arrays that broadcast to one length."""
    spec = operation_spec(operation)
    if dtype not in COMPUTE_BYTES:
        raise InvalidArgumentError(f"dtype {dtype!r} is not known. Known dtypes: {', '.join(COMPUTE_BYTES)}.")
    given = _expand(spec, words)
    arrays = {word: np.atleast_1d(np.asarray(value, dtype=np.float64)) for word, value in given.items()}
    for word, value in spec.defaults.items():
        if word not in arrays:
            arrays[word] = arrays[value] if isinstance(value, str) else np.array([float(value)])
    _check_values(operation, spec, arrays)
    try:
        columns = np.broadcast_arrays(*(arrays[word] for word in spec.shape))
    except ValueError:
        lengths = {word: array.shape for word, array in arrays.items()}
        raise InvalidArgumentError(
            f"Shape parameters of {operation!r} have lengths that do not broadcast: {lengths}. Give scalars or "
            "arrays of one length."
        ) from None
    return ShapeBatch(operation, dtype, {w: column.ravel() for w, column in zip(spec.shape, columns, strict=True)})


def batch_shapes(shapes: Sequence[OperationShape]) -> ShapeBatch:
    """Combine shapes of one operation and dtype into a batch."""
    first = shapes[0]
    values = np.array([shape.dims for shape in shapes], dtype=np.float64)
    names = operation_spec(first.operation).shape
    return ShapeBatch(first.operation, first.dtype, {name: values[:, i] for i, name in enumerate(names)})


def operation_shape(operation: str, dtype: str, **parameters: float) -> OperationShape:
    """Build one shape from shape parameters. Raises the errors of `shape_batch`."""
    batch = shape_batch(operation, dtype, **parameters)
    return OperationShape(operation, dtype, tuple(float(column[0]) for column in batch.columns.values()))


def _expand(
    spec: OperationSpec, parameters: Mapping[str, float | Sequence[float] | npt.NDArray[np.generic]]
) -> dict[str, float | Sequence[float] | npt.NDArray[np.generic]]:
    """Replace alternative names by the parameters that they set; raise an error for unknown and missing parameters."""
    spellings = spec.spellings or {}
    expanded: dict[str, float | Sequence[float] | npt.NDArray[np.generic]] = {}
    for word, value in parameters.items():
        for target in spellings.get(word, (word,)):
            expanded.setdefault(target, value)
    # A parameter's own name takes precedence over an alternative name that also sets it.
    expanded |= {word: value for word, value in parameters.items() if word in spec.shape}
    strangers = [word for word in parameters if word not in spec.shape and word not in spellings]
    missing = [word for word in spec.shape if word not in expanded and word not in spec.defaults]
    if strangers or missing:
        reasons = [f"does not take {strangers}"] if strangers else []
        reasons += [f"needs {missing}"] if missing else []
        raise UnknownOperationError(
            f"Operation {spec.name!r} {' and '.join(reasons)}. Its shape parameters: {_describe(spec)}."
        )
    return expanded


def _describe(spec: OperationSpec) -> str:
    words = [f"{word}={spec.defaults[word]}" if word in spec.defaults else word for word in spec.shape]
    short = [f"{spelling} (sets {', '.join(targets)})" for spelling, targets in (spec.spellings or {}).items()]
    return ", ".join(words + short)


def _check_values(operation: str, spec: OperationSpec, arrays: Mapping[str, Array]) -> None:
    for word in spec.shape:
        values = arrays[word]
        zero_allowed = (word in spec.defaults and spec.defaults[word] == 0) or word.startswith(
            ("padding", "read", "write")
        )
        smallest = 0.0 if zero_allowed else 1.0
        wrong = values[~(np.isfinite(values) & (values >= smallest))]
        if wrong.size:
            raise InvalidArgumentError(
                f"Operation {operation!r} got {word}={wrong[0]:g}; expected a finite number of at least {smallest:g}."
            )
