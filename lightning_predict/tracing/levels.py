"""Which calls of a profile are the operations: the level that a recorder below autograd would see.

Composites and containers are descended into, everything below an operation is left out, and the parts of a whole
call's backward pass are drawn together by autograd's sequence numbers. Nothing that launched work on the device is
lost: what no operation launched comes under the name of the call around it, a fused kernel as `triton::<kernel>`, all
kernels of one CUDA graph together as `cuda_graph`, and what has no call around it as `unattributed`. Example::

    for found in select_operations(profile):
        print(found.name, found.in_backward, len(found.work))
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, final

from lightning_predict.tracing.calls import operator_name
from lightning_predict.tracing.composites import is_composite
from lightning_predict.tracing.events import Call, DeviceWork, Profile, Thread
from lightning_predict.tracing.whole import WHOLE_OPERATIONS, backward_name, recorded_name

UNATTRIBUTED: Final = "unattributed"
"""Name of device work that no call is known for."""

CUDA_GRAPH: Final = "cuda_graph"
"""Name of a CUDA graph's launch, whose kernels no call is known for."""

MODULE_MARK: Final = "nn.Module#"
"""What the name of a mark begins with that our recorder puts around a module's call; the module's name follows."""

FUSED_PREFIX: Final = "triton_"
_GRAPH_LAUNCHES: Final = frozenset({"cudaGraphLaunch", "cuGraphLaunch"})

LOADER_MARK: Final = "enumerate(DataLoader)#"
"""What the name of the profiler's mark around a DataLoader's next begins with."""

_NODE: Final = "autograd::engine::evaluate_function: "
_BARE_NODE: Final = re.compile(r"\w*Backward\d*|(struct )?torch::autograd::\w+(<.*>)?")
"""A node's own name; torch 1.8 and 1.9 record it without the engine's call around it."""

_ACCUMULATES: Final = "torch::autograd::AccumulateGrad"
_ZERO_GRAD: Final = "Optimizer.zero_grad#"


@final
@dataclass(slots=True, eq=False)
class Found:
    """One operation of the profile.

    Attributes:
        name: Its name in the Trace.
        call: The call whose tensors and arguments it has; None for device work without a call.
        start: Start on the host in microseconds.
        duration: Time on the host in microseconds; None where no call is known.
        in_backward: An autograd node ran it.
        builds_graph: A backward node of this step belongs to it.
        grad_enabled: Gradients were on.
        zeroes: It cleared gradients.
        work: What it ran on the device, with the launch where one was recorded.
        whole_forward: The whole call whose backward pass this is; None for every other operation.
        accumulates: It adds to `.grad`.
        module: Name of the module that called it, or whose backward pass it is; None where no call was marked.
    """

    name: str
    call: Call | None
    start: float
    duration: float | None
    in_backward: bool = False
    builds_graph: bool = False
    grad_enabled: bool = False
    zeroes: bool = False
    work: list[tuple[DeviceWork, Call | None]] = field(default_factory=list)
    whole_forward: Call | None = None
    accumulates: bool = False
    module: str | None = None


@final
@dataclass(frozen=True, slots=True)
class _Around:
    """What the calls around say about a call."""

    in_backward: bool = False
    accumulates: bool = False
    builds_graph: bool = False
    grad_enabled: bool = False
    zeroes: bool = False
    module: str | None = None


def select_operations(profile: Profile) -> list[Found]:
    """The operations of a step in the order of the host."""
    selector = _Selector(_Nodes(profile))
    engine_threads = _engine_threads(profile)
    found = [
        item
        for root in profile.roots
        for item in selector.select(root, _Around(in_backward=root.thread in engine_threads))
    ]
    found.extend(
        Found(_stray_name(work, None), None, work.start, None, work=[(work, None)]) for work in profile.stray_work
    )
    found.sort(key=lambda item: item.start)
    return list(_join_backward(found))


def is_backward_node(call: Call) -> bool:
    """True for autograd's record of a node that runs, outer or inner."""
    parent = call.parent
    return is_outer_node(call) or (parent is not None and parent.name == _NODE + call.name)


def is_outer_node(call: Call) -> bool:
    """True for the outermost record of a node that autograd runs: the engine's call; the node itself in older files."""
    if call.is_annotation or call.is_launch:
        return False
    if call.name.startswith(_NODE):
        return True
    if not ("Backward" in call.name or "torch::autograd::" in call.name) or _BARE_NODE.fullmatch(call.name) is None:
        return False
    return call.parent is None or call.parent.is_annotation


def _engine_threads(profile: Profile) -> frozenset[Thread]:
    """Threads of autograd's engine, which adds gradients up between the nodes as well.

    Newer files show that inside the engine's call; in those of torch 1.8 and 1.9 only the thread gives it away.
    """
    if not profile.roots:
        return frozenset()
    nodes = {root.thread for root in profile.roots if is_outer_node(root) and not root.name.startswith(_NODE)}
    return frozenset(nodes - {profile.roots[0].thread})


@final
class _Nodes:
    """Which forward call an autograd node belongs to, by thread and sequence number."""

    def __init__(self, profile: Profile) -> None:
        calls = list(profile.calls())
        counted = [call for call in calls if call.sequence_number is not None and not is_backward_node(call)]
        threads = Counter(call.thread for call in counted)
        self._main: Thread = threads.most_common(1)[0][0] if threads else (None, None)
        self._threads = self._thread_numbers(profile, calls)
        # The last call that saw a number is the one that made its node.
        self._modules = {
            (call.thread, call.sequence_number): _module_around(call)
            for call in sorted(counted, key=lambda one: one.start)
        }
        nodes = [call for call in calls if is_outer_node(call) and call.sequence_number is not None]
        numbers: dict[Thread, set[int]] = {}
        for node in nodes:
            numbers.setdefault(self._forward_thread(node), set()).add(node.sequence_number or 0)
        self._node_numbers = {thread: sorted(values) for thread, values in numbers.items()}
        self._whole_calls: dict[Thread, list[tuple[int, int, Call]]] = {}
        by_thread: dict[Thread, list[Call]] = {}
        for call in sorted(counted, key=lambda one: one.start):
            by_thread.setdefault(call.thread, []).append(call)
        for thread, members in by_thread.items():
            starts = [member.start for member in members]
            regions = [
                (member.sequence_number or 0, self._number_after(members, starts, member), member)
                for member in members
                if operator_name(member) in WHOLE_OPERATIONS
            ]
            self._whole_calls[thread] = sorted(regions, key=lambda region: region[0])

    def whole_call(self, node: Call) -> Call | None:
        """The whole call that created a node."""
        number = node.sequence_number
        regions = self._whole_calls.get(self._forward_thread(node), [])
        if number is None:
            return None
        index = bisect_right(regions, number, key=lambda region: region[0]) - 1
        return regions[index][2] if index >= 0 and number < regions[index][1] else None

    def module(self, node: Call) -> str | None:
        """Name of the module whose call created a node."""
        return self._modules.get((self._forward_thread(node), node.sequence_number))

    def builds_graph(self, call: Call) -> bool:
        """True where a node of this step's backward pass was created by the call."""
        number = call.sequence_number
        if number is None:
            return False
        numbers = self._node_numbers.get(call.thread, [])
        end = number + 1
        if operator_name(call) in WHOLE_OPERATIONS:
            end = next((region[1] for region in self._whole_calls.get(call.thread, []) if region[2] is call), end)
        return bisect_left(numbers, number) < bisect_left(numbers, end)

    @staticmethod
    def _number_after(members: list[Call], starts: list[float], call: Call) -> int:
        """Autograd's counter after a call: what the next call on its thread saw."""
        index = bisect_left(starts, call.end)
        return (members[index].sequence_number or 0) if index < len(members) else 2**63

    def _forward_thread(self, node: Call) -> Thread:
        return self._threads.get(node.details.get("fwd thread id"), self._main)

    @staticmethod
    def _thread_numbers(profile: Profile, calls: Iterable[Call]) -> dict[object, Thread]:
        """Thread by the number that backward nodes give it, from the links between forward and backward."""
        nodes = [call for call in calls if is_backward_node(call)]
        number_at = {(node.thread, node.start): node.details.get("fwd thread id") for node in nodes}
        return {number_at[end]: start[0] for start, end in profile.flows if end in number_at}


@final
class _Selector:
    """Walks the calls and yields the operations."""

    def __init__(self, nodes: _Nodes) -> None:
        self._nodes = nodes

    def select(self, call: Call, around: _Around) -> Iterator[Found]:
        """The operations at or below a call."""
        if call.name.startswith(LOADER_MARK):
            # What a loader computes on the processor is its own time; what it runs on the device delays the step.
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
        """True for a composite; one that launches work itself is a kernel of its own on this device."""
        launches = (child for child in call.children if child.is_launch)
        if name in WHOLE_OPERATIONS or call.device_work or any(launch.device_work for launch in launches):
            return False
        return is_composite(name, [child_name for child in call.children if (child_name := operator_name(child))])

    def _backward_part(self, node: Call, whole_forward: Call, around: _Around) -> Iterator[Found]:
        """A node of a whole call's backward pass; a forward that checkpointing recomputes inside stands alone."""
        recomputed = list(_recomputed(node))
        work = list(_work(node, leave_out=recomputed))
        inner = (call for call in node.descendants() if operator_name(call) is not None)
        if work or any(call.sequence_number is None for call in inner):
            name = backward_name(operator_name(whole_forward) or whole_forward.name)
            found = self._found(name, whole_forward, around, work)
            found.start, found.duration, found.whole_forward = node.start, node.end - node.start, whole_forward
            yield found
        for call in recomputed:
            yield from self.select(call, around)

    @staticmethod
    def _found(name: str, call: Call, around: _Around, work: list[tuple[DeviceWork, Call | None]]) -> Found:
        return Found(
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
    """Name of the innermost marked module around a call."""
    around = call.parent
    while around is not None:
        if around.name.startswith(MODULE_MARK):
            return around.name.removeprefix(MODULE_MARK) or None
        around = around.parent
    return None


def _work(call: Call, leave_out: Iterable[Call] = ()) -> Iterator[tuple[DeviceWork, Call | None]]:
    """Device work of a call and of all calls inside, with the launches, in their order."""
    for work in call.device_work:
        yield work, call if call.is_launch else None
    for child in call.children:
        if not any(child is other for other in leave_out):
            yield from _work(child, leave_out)


def _recomputed(node: Call) -> Iterator[Call]:
    """Outermost operations inside a node that ran with gradients on."""
    for child in node.children:
        if operator_name(child) is not None and child.sequence_number is not None:
            yield child
        elif child.sequence_number is None or is_backward_node(child):
            yield from _recomputed(child)


def _stray_name(work: DeviceWork, launch: Call | None) -> str:
    """A name for device work outside every operation."""
    if work.name.startswith(FUSED_PREFIX):
        return f"triton::{work.name}"
    around = launch
    while around is not None and (around.is_launch or around.is_annotation or is_outer_node(around)):
        around = around.parent
    return UNATTRIBUTED if around is None else around.name


def _join_backward(found: Iterable[Found]) -> Iterator[Found]:
    """Draw the nodes of one whole call's backward pass together.

    Autograd runs them one after another; only the nodes that add to `.grad` may come between.
    """
    last: Found | None = None
    for item in found:
        if last is not None and item.whole_forward is not None and item.whole_forward is last.whole_forward:
            last.work.extend(item.work)
            last.duration = (last.duration or 0.0) + (item.duration or 0.0)
            continue
        yield item
        if not item.accumulates:
            last = item if item.whole_forward is not None else None
