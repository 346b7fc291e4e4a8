"""Assigns the kernels and copies of a profile to operations: those that a `TorchDispatchMode` would see.

A composite operator, or a call that only groups others, is replaced by the calls inside it. An operation includes all
device work inside its call. Some calls are kept as one operation; their backward parts are joined by autograd's
sequence number. No device work is lost: work outside operations gets the name of the enclosing call, or `unattributed`.
Fused kernels become `triton::<kernel>`, and the kernels of a CUDA graph become `cuda_graph`.

The dispatcher runs a composite by running its parts (`aten::linear` calls `aten::addmm`). A dispatch mode sees only the
parts, so a reader of profiler events must descend to the same level. Composites are the operators in torch's registry
that have a `CompositeImplicitAutograd` kernel and no CPU kernel. The list is copied from the registry, so that reading
a file does not need torch. A test compares the list with the installed torch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lightning_predict.record.calls import operator_name
from lightning_predict.record.events import Call, DeviceWork, Profile, Thread
from lightning_predict.record.signatures import MODULE_MARK, WHOLE_OPERATIONS, backward_name, recorded_name

COMPOSITE_OPERATIONS: Final = frozenset(
    f"aten::{name}" for name in Path(__file__).with_name("composite_operations.txt").read_text(encoding="utf-8").split()
)
"""Operations all of whose overloads are composite, from the registry of torch 2.13."""

PARTLY_COMPOSITE: Final[Mapping[str, frozenset[str]]] = {
    "aten::max": frozenset({"aten::maximum"}),
    "aten::min": frozenset({"aten::minimum"}),
    "aten::split": frozenset({"aten::split_with_sizes"}),
    "aten::where": frozenset({"aten::where", "aten::nonzero_numpy"}),
    **{
        f"aten::{name}": frozenset({f"aten::{name}"})
        for name in """
_convolution _sparse_log_softmax _sparse_softmax _sparse_sum _upsample_bicubic2d_aa _upsample_bilinear2d_aa
_upsample_lanczos2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d linalg_pinv
repeat_interleave set_ sparse_coo_tensor std std_mean upsample_bicubic2d upsample_bilinear2d upsample_linear1d
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean
""".split()
    },
}
"""Operations with some composite overloads. The values are inner calls that identify a composite overload."""


def is_composite(name: str, child_names: Collection[str]) -> bool:
    """Return whether the call is a composite operator, which only calls other operations."""
    return name in COMPOSITE_OPERATIONS or not PARTLY_COMPOSITE.get(name, frozenset()).isdisjoint(child_names)


UNATTRIBUTED: Final = "unattributed"  # Name of device work without an enclosing call
CUDA_GRAPH: Final = "cuda_graph"  # Name of a CUDA graph launch. The calls of its kernels are unknown.

FUSED_PREFIX: Final = "triton_"
_GRAPH_LAUNCHES: Final = frozenset({"cudaGraphLaunch", "cuGraphLaunch"})

LOADER_MARK: Final = "enumerate(DataLoader)#"  # Prefix of the profiler's marker around the `__next__` of a DataLoader

_NODE: Final = "autograd::engine::evaluate_function: "
_ACCUMULATES: Final = "torch::autograd::AccumulateGrad"
_ZERO_GRAD: Final = "Optimizer.zero_grad#"


@dataclass(slots=True, eq=False)
class FoundOperation:
    """Operation in a profile."""

    name: str
    call: Call | None  # Call with its tensors and arguments; None for device work without a call
    start: float  # Start on the host in microseconds
    duration: float | None  # Time on the host in microseconds; None without a call
    in_backward: bool = False  # Whether an autograd node ran the operation
    builds_graph: bool = False  # Whether the operation created a backward node of this step
    grad_enabled: bool = False
    zeroes: bool = False  # Whether the operation set gradients to zero
    # Device work of the operation, with the launch of each part if recorded
    work: list[tuple[DeviceWork, Call | None]] = field(default_factory=list)
    whole_forward: Call | None = None  # Whole call to whose backward pass the operation belongs; otherwise None
    accumulates: bool = False  # Whether the operation accumulates into `.grad`
    module: str | None = None  # Module that called the operation (or its forward); None if none was marked


@dataclass(frozen=True, slots=True)
class _Around:
    """Phase and module of a call, inherited from the enclosing calls."""

    in_backward: bool = False
    accumulates: bool = False
    builds_graph: bool = False
    grad_enabled: bool = False
    zeroes: bool = False
    module: str | None = None


def select_operations(profile: Profile) -> list[FoundOperation]:
    """Return the operations of a step, in the order of the host."""
    selector = _Selector(_Nodes(profile))
    selected = [item for root in profile.roots for item in selector.select(root, _Around())]
    selected.extend(
        FoundOperation(_stray_name(work, None), None, work.start, None, work=[(work, None)])
        for work in profile.stray_work
    )
    selected.sort(key=lambda item: item.start)
    return list(_join_backward(selected))


def is_backward_node(call: Call) -> bool:
    """Return whether a call is autograd's record of a node, which may be the outer or the inner record."""
    parent = call.parent
    return is_outer_node(call) or (parent is not None and parent.name == _NODE + call.name)


def is_outer_node(call: Call) -> bool:
    """Return whether a call is the engine's record of a node."""
    return call.name.startswith(_NODE) and not call.is_annotation and not call.is_launch


class _Nodes:
    """Forward calls that created autograd nodes, by thread and sequence number."""

    def __init__(self, profile: Profile) -> None:
        calls = list(profile.calls())
        counted = [call for call in calls if call.sequence_number is not None and not is_backward_node(call)]
        threads = Counter(call.thread for call in counted)
        self._main: Thread = threads.most_common(1)[0][0] if threads else (None, None)
        self._threads = self._thread_numbers(profile, calls)
        # The last call with a given sequence number created its node.
        self._makers = {
            (call.thread, call.sequence_number): call for call in sorted(counted, key=lambda call: call.start)
        }
        nodes = [call for call in calls if is_outer_node(call) and call.sequence_number is not None]
        numbers: dict[Thread, set[int]] = {}
        for node in nodes:
            numbers.setdefault(self._forward_thread(node), set()).add(node.sequence_number or 0)
        self._node_numbers = {thread: sorted(values) for thread, values in numbers.items()}
        self._whole_calls: dict[Thread, list[tuple[int, int, Call]]] = {}
        by_thread: dict[Thread, list[Call]] = {}
        for call in sorted(counted, key=lambda call: call.start):
            by_thread.setdefault(call.thread, []).append(call)
        for thread, members in by_thread.items():
            starts = [member.start for member in members]
            regions: list[tuple[int, int, Call]] = []
            for member in members:  # autocast calls the operator again, with cast tensors
                if operator_name(member) in WHOLE_OPERATIONS and (not regions or regions[-1][2].end <= member.start):
                    index = bisect_left(starts, member.end)
                    number = (members[index].sequence_number or 0) if index < len(members) else 2**63
                    regions.append((member.sequence_number or 0, number, member))
            self._whole_calls[thread] = sorted(regions, key=lambda region: region[0])

    def whole_call(self, node: Call) -> Call | None:
        """Return the whole call that created a node; None if another call created the node."""
        number = node.sequence_number
        regions = self._whole_calls.get(self._forward_thread(node), [])
        if number is None:
            return None
        index = bisect_right(regions, number, key=lambda region: region[0]) - 1
        return regions[index][2] if index >= 0 and number < regions[index][1] else None

    def module(self, node: Call) -> str | None:
        """Return the name of the module whose call created a node."""
        maker = self._makers.get((self._forward_thread(node), node.sequence_number))
        return None if maker is None else _module_around(maker)

    def builds_graph(self, call: Call) -> bool:
        """Return whether the call created a node of this step's backward pass."""
        number = call.sequence_number
        if number is None:
            return False
        numbers = self._node_numbers.get(call.thread, [])
        end = number + 1
        if operator_name(call) in WHOLE_OPERATIONS:
            end = next((region[1] for region in self._whole_calls.get(call.thread, []) if region[2] is call), end)
        elif not call.start <= self._makers.get((call.thread, number), call).start < call.end:
            return False  # another call created the node; this call only read the counter, like the copy of a batch
        return bisect_left(numbers, number) < bisect_left(numbers, end)

    def _forward_thread(self, node: Call) -> Thread:
        return self._threads.get(node.details.get("fwd thread id"), self._main)

    @staticmethod
    def _thread_numbers(profile: Profile, calls: Iterable[Call]) -> dict[object, Thread]:
        """Map the thread numbers in backward nodes to threads, using the links between forward and backward calls."""
        nodes = [call for call in calls if is_backward_node(call)]
        number_at = {(node.thread, node.start): node.details.get("fwd thread id") for node in nodes}
        return {number_at[end]: start[0] for start, end in profile.flows if end in number_at}


class _Selector:
    """Walks through the tree of calls, and yields the operations."""

    def __init__(self, nodes: _Nodes) -> None:
        self._nodes = nodes

    def select(self, call: Call, around: _Around) -> Iterator[FoundOperation]:
        """Yield the operations at or below a call."""
        if call.name.startswith(LOADER_MARK):
            # CPU work of a data loader is not part of the step, but its device work delays the step.
            for child in call.children:
                yield from (item for item in self.select(child, around) if item.work)
            return
        name = operator_name(call)
        around = self._within(call, around)
        whole_forward = self._nodes.whole_call(call) if is_outer_node(call) else None
        if whole_forward is not None:
            yield from self._backward_part(call, whole_forward, around)
        elif name is not None and not self._is_only_calls(call, name):
            yield self._found(recorded_name(name), call, around, list(_work(call)))
        elif name is None and call.name.startswith(FUSED_PREFIX) and not call.is_annotation:
            yield self._found(f"triton::{call.name}", call, around, list(_work(call)))
        elif call.name in _GRAPH_LAUNCHES and call.device_work:
            yield self._found(CUDA_GRAPH, call, around, [(work, call) for work in call.device_work])
        else:
            for work in call.device_work:
                yield self._found(_stray_name(work, call), call, around, [(work, call)])
            for child in call.children:
                yield from self.select(child, around)

    def _within(self, call: Call, around: _Around) -> _Around:
        is_node = is_outer_node(call)
        is_counted = call.sequence_number is not None and not is_backward_node(call)
        module = around.module
        if is_node:
            module = self._nodes.module(call)
        elif call.name.startswith(MODULE_MARK):
            module = call.name.removeprefix(MODULE_MARK) or None
        return _Around(
            module=module,
            in_backward=around.in_backward or is_node,
            accumulates=around.accumulates or (is_node and call.name.endswith(_ACCUMULATES)),
            builds_graph=around.builds_graph or (is_counted and self._nodes.builds_graph(call)),
            grad_enabled=around.grad_enabled or is_counted,
            zeroes=around.zeroes or call.name.startswith(_ZERO_GRAD),
        )

    @staticmethod
    def _is_only_calls(call: Call, name: str) -> bool:
        """Return whether a call is a composite that only calls others. A composite with launches is an operation."""
        launches = (child for child in call.children if child.is_launch)
        if name in WHOLE_OPERATIONS or call.device_work or any(launch.device_work for launch in launches):
            return False
        return is_composite(name, [child_name for child in call.children if (child_name := operator_name(child))])

    def _backward_part(self, node: Call, whole_forward: Call, around: _Around) -> Iterator[FoundOperation]:
        """Yield a node's part of a whole call's backward pass, then the forward operations recomputed in the node."""
        recomputed = list(_recomputed(node))
        work = list(_work(node, leave_out=recomputed))
        inner = (call for call in node.descendants() if operator_name(call) is not None)
        if work or any(call.sequence_number is None for call in inner):
            name = backward_name(operator_name(whole_forward) or whole_forward.name)
            part = self._found(name, whole_forward, around, work)
            part.start, part.duration, part.whole_forward = node.start, node.end - node.start, whole_forward
            yield part
        for call in recomputed:
            yield from self.select(call, around)

    @staticmethod
    def _found(name: str, call: Call, around: _Around, work: list[tuple[DeviceWork, Call | None]]) -> FoundOperation:
        return FoundOperation(
            name,
            call,
            call.start,
            call.end - call.start,
            in_backward=around.in_backward,
            builds_graph=around.builds_graph,
            grad_enabled=around.grad_enabled,
            zeroes=around.zeroes,
            work=work,
            accumulates=around.accumulates,
            module=around.module,
        )


def _module_around(call: Call) -> str | None:
    """Return the name of the innermost module whose marked call contains a call."""
    around = call.parent
    while around is not None:
        if around.name.startswith(MODULE_MARK):
            return around.name.removeprefix(MODULE_MARK) or None
        around = around.parent
    return None


def _work(call: Call, leave_out: Iterable[Call] = ()) -> Iterator[tuple[DeviceWork, Call | None]]:
    """List the device work of a call and of all calls inside it, with the launches, in order."""
    for work in call.device_work:
        yield work, call if call.is_launch else None
    for child in call.children:
        if not any(child is other for other in leave_out):
            yield from _work(child, leave_out)


def _recomputed(node: Call) -> Iterator[Call]:
    """Yield the outermost operations inside a node that ran with gradients enabled (recomputed by checkpointing)."""
    for child in node.children:
        if operator_name(child) is not None and child.sequence_number is not None:
            yield child
        elif child.sequence_number is None or is_backward_node(child):
            yield from _recomputed(child)


def _stray_name(work: DeviceWork, launch: Call | None) -> str:
    """Return a name for device work outside every operation."""
    if work.name.startswith(FUSED_PREFIX):
        return f"triton::{work.name}"
    around = launch
    while around is not None and (around.is_launch or around.is_annotation or is_outer_node(around)):
        around = around.parent
    return UNATTRIBUTED if around is None else around.name


def _join_backward(operations: Iterable[FoundOperation]) -> Iterator[FoundOperation]:
    """Join the consecutive nodes of the backward pass of each whole call into one operation."""
    last: FoundOperation | None = None
    for item in operations:
        if last is not None and item.whole_forward is not None and item.whole_forward is last.whole_forward:
            last.work.extend(item.work)
            last.duration = (last.duration or 0.0) + (item.duration or 0.0)
            continue
        yield item
        if not item.accumulates:
            last = item if item.whole_forward is not None else None
