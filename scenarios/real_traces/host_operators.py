"""What the host was doing when it launched a kernel; and the work of a rank without a GPU, by operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import nan
from typing import Any, NamedTuple

from clustersim.scenarios.real_traces import pieces_of_work
from clustersim.scenarios.real_traces.pieces_of_work import Call, Piece, Shape, tensor_bytes
from clustersim.scenarios.real_traces.trace_file import Event, TraceFile

PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
"""Operators that are one matrix product, and the index of its left matrix among the inputs."""

ELEMENTWISE = {"aten::add": 1, "aten::add_": 1, "aten::mul": 1, "aten::mul_": 1, "aten::gelu": 1, "aten::copy_": 0}
"""Operators that one kernel executes at the speed of the memory; 1 if they write a tensor beside their inputs."""

PRECISIONS = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16", "double": "fp64"}
"""Names of precisions by torch's names of types in "Input type"."""

BACKWARD = ("autograd::engine::evaluate_function", "torch::autograd::")
OPTIMIZER = ("Optimizer.step", "Optimizer.zero_grad")
LOADER = "enumerate(DataLoader)"
OPERATOR = ("aten::", "torchvision::", "triton_", "flash_attn", "fbgemm::", "_c10d_functional::", "c10d::")


HOST_OPERATORS = ("cpu_op", "operator")
FRAMES = (*HOST_OPERATORS, "user_annotation", "python_function")
"""Categories of events on threads of the host; older versions write them with capitals, which `trace_file` lowers."""


class HostContext(NamedTuple):
    """Where in the program a moment of a host thread lies. *op*: the innermost operator.

    *shape* and *precision*: of its matrix product. *call*: the event that issues a communication. *nbytes*: what an
    elementwise operator reads and writes; 0 if unknown.
    """

    phase: str = "forward"
    op: str = ""
    shape: Shape | None = None
    precision: str = ""
    layer: str = ""
    call: Event | None = None
    nbytes: float = 0.0


def frames(file: TraceFile) -> list[Event]:
    """Return the events of *file* that enclose others on threads of the host."""
    return [event for event in file.events if event.category in FRAMES]


def contexts(events: Iterable[Event], moments: Sequence[Event]) -> list[HostContext]:
    """Return the context of each of *moments*, events on threads of the host; *events* nest on each thread."""
    by_thread: dict[tuple[str, str], list[tuple[float, float, int, Event]]] = defaultdict(list)
    for event in events:
        by_thread[event.process, event.thread].append((event.begin, -event.duration, -1, event))
    for place, moment in enumerate(moments):
        by_thread[moment.process, moment.thread].append((moment.begin, 0.0, place, moment))
    found = [HostContext()] * len(moments)
    for row in by_thread.values():
        stack: list[tuple[float, HostContext]] = []
        for begin, _, place, event in sorted(row, key=lambda one: one[:3]):
            while stack and stack[-1][0] <= begin and not (place < 0 and event.duration == 0.0):
                stack.pop()
            around = stack[-1][1] if stack else HostContext()
            if place >= 0:
                found[place] = around
            else:
                stack.append((event.end, inside(around, event)))
    return found


def inside(around: HostContext, event: Event) -> HostContext:
    """Return the context inside *event*, which itself lies in *around*."""
    name = event.name
    if name.startswith(BACKWARD):
        return around._replace(phase="backward")
    if name.startswith(OPTIMIZER):
        return around._replace(phase="optimizer")
    if name.startswith("nn.Module: "):
        return around._replace(layer=name.removeprefix("nn.Module: "))
    if name == "record_param_comms" or name.startswith(("c10d::", "nccl:")):
        around = around._replace(call=event)
    if not name.startswith(OPERATOR) or around.shape is not None:
        return around
    shape = product_shape(event)
    if shape is None:
        return around._replace(op=name, nbytes=moved_bytes(event))
    return around._replace(op=name, shape=shape, precision=precision(event.args.get("Input type")))


def product_shape(event: Event) -> Shape | None:
    """Return (batch, m, n, k) of the matrix product of *event*; None if it is none, or its shapes were not recorded."""
    dims, first = event.args.get("Input Dims"), PRODUCTS.get(event.name)
    if first is None or not isinstance(dims, list) or len(dims) < first + 2:
        return None
    left, right = dims[first], dims[first + 1]
    if not (_sizes(left) and _sizes(right)) or len(left) != len(right) or len(left) not in (2, 3):
        return None
    batch = left[0] if len(left) == 3 else 1
    return batch, left[-2], right[-1], left[-1]


def moved_bytes(event: Event) -> float:
    """Return the bytes that an elementwise operator reads and writes; 0 for another operator, or without shapes."""
    dims, types = event.args.get("Input Dims"), event.args.get("Input type")
    if event.name not in ELEMENTWISE or not isinstance(dims, list) or not isinstance(types, list):
        return 0.0
    tensors = [tensor_bytes({"Input Dims": [d], "Input type": [t]}) for d, t in zip(dims, types, strict=False) if d]
    if not tensors or None in tensors:
        return 0.0
    known = [one or 0.0 for one in tensors]
    return sum(known) + ELEMENTWISE[event.name] * max(known)


def _sizes(dims: Any) -> bool:
    return isinstance(dims, list) and all(isinstance(one, int) and 0 < one < 2**40 for one in dims)


def precision(types: Any) -> str:
    """Return the precision of the first of the *types* of inputs that is one; empty if there is none."""
    names = types if isinstance(types, list) else []
    return next((PRECISIONS[one] for one in names if isinstance(one, str) and one in PRECISIONS), "")


def operators(file: TraceFile, world: int) -> list[Piece]:
    """Return the operators of a trace without a GPU, and the operations of gloo."""
    own = [event for event in frames(file) if not event.name.startswith("gloo:")]
    outermost = list(_outermost(event for event in own if event.category in HOST_OPERATORS))
    around = contexts(own, [inner for _, inner in outermost])
    pieces = [
        Piece(
            event.name, context.phase, event.thread, event.begin, event.end, nan, context.op or event.name,
            context.layer, context.shape, context.precision, nbytes=context.nbytes,
        )
        for (event, _), context in zip(outermost, around, strict=True)
    ]  # fmt: skip
    for event in file.events:
        kind = pieces_of_work.gloo_kind(event.name)
        if kind is not None:
            nbytes = pieces_of_work.vector(kind, pieces_of_work.tensor_bytes(event.args), world)
            ranks = 2 if kind in ("send", "recv") else world
            call = Call(kind, nbytes, "", ranks)
            pieces.append(Piece(event.name, kind, f"gloo {event.thread}", event.begin, event.end, call=call))
    return pieces


def _outermost(events: Iterable[Event]) -> Iterator[tuple[Event, Event]]:
    """Yield the outermost operators, each with a moment in its last matrix product, if it has one."""
    by_thread: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.name.startswith(("aten::", "torchvision::", "detach")):
            by_thread[event.thread].append(event)
    for row in by_thread.values():
        outer: Event | None = None
        inner: Event | None = None
        for event in row:
            if outer is not None and event.begin < outer.end:
                inner = inner if event.name not in PRODUCTS else event
                continue
            if outer is not None:
                yield outer, _moment(inner or outer)
            outer, inner = event, None
        if outer is not None:
            yield outer, _moment(inner or outer)


def _moment(event: Event) -> Event:
    """Return a moment inside *event*."""
    return event._replace(begin=event.begin + event.duration / 2, duration=0.0)
