"""One rank of a timeline as torch.profiler (Kineto) writes a GPU trace; tools such as HolisticTraceAnalysis read it.

Every kernel, copy and communication is an event on a stream of the GPU. Each has the CUDA call that launched it.
The timeline has no launches. They are placed at the begin of the training step, before its first kernel, because the
host of the simulation is ahead of its GPU. The launch after a `Delay` is placed at the end of that delay. So the tools
find idle time of the host where the simulation has it. Times are whole microseconds: HolisticTraceAnalysis rounds other
times towards shorter kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from clustersim.simulator.analysis.timeline import Floats, Integers, Timeline, op_streams
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Delay, Op, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.traces.slices import Track, op_texts, process_name, tracks

FIRST_STREAM = 7
"""CUDA's number of torch's first stream; stream 0 would be no stream to HolisticTraceAnalysis."""

EMPTY_STEP = 1
"""Duration (µs) of a step without kernels at the end. HolisticTraceAnalysis leaves out the last step."""

COLLECTIVE_NAMES = {
    "all_reduce": ("AllReduce_Sum_u8", "allreduce"),
    "all_gather": ("AllGather", "_allgather_base"),
    "reduce_scatter": ("ReduceScatter_Sum_u8", "_reduce_scatter_base"),
    "broadcast": ("Broadcast", "broadcast"),
    "reduce": ("Reduce_Sum_u8", "reduce"),
    "all_to_all": ("SendRecv", "all_to_allv"),
    "gather": ("SendRecv", "gather"),
    "scatter": ("SendRecv", "scatter"),
}
"""The names of a collective in NCCL's kernels, and in torch's "Collective name"."""


def kineto(timeline: Timeline, rank: int) -> bytes:
    """Return the trace of *rank*, which runs on a GPU, as JSON."""
    events = _Events(timeline, rank)
    head = {
        "schemaVersion": 1,
        # HolisticTraceAnalysis finds the rank by a pattern with a space behind the colon
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": timeline.world_size},
        "displayTimeUnit": "ms",
        "traceName": f"rank{rank}.json",
    }
    lines = ",\n".join(json.dumps(event) for event in events.all())
    return f'{json.dumps(head)[:-1]},\n"traceEvents": [\n{lines}\n]}}\n'.encode()


class _Spans(NamedTuple):
    """The spans of one track: *op* and *step*; *begin*, *end* and *launch* in whole µs."""

    op: Integers
    step: Integers
    begin: Integers
    end: Integers
    launch: Integers


class _Events:
    """The events of *rank*. The host's process has a number of its own behind those of the GPUs."""

    def __init__(self, timeline: Timeline, rank: int) -> None:
        self.timeline, self.rank, self.host = timeline, rank, timeline.world_size + rank
        self.program = timeline.schedule.program(rank)
        self.ops: Sequence[Op] = self.program.ops
        self.after_delays = list(_after_delays(self.program))
        own = timeline.of(rank)
        self.steps = np.unique(own.step)
        # one microsecond for the launch of each kernel, before the first kernel of its step; the same on all ranks
        self.lead = 1 + max(len(program.ops) for program in timeline.schedule.programs)
        self.first = _step_begins(timeline)
        self.last = _micro(own.end.max(initial=0.0))

    def all(self) -> Iterator[dict[str, Any]]:
        """Yield all events: names, steps, then each track with its launches."""
        yield _named("process_name", self.rank, 0, name=process_name(self.timeline, self.rank))
        yield _named("process_labels", self.rank, 0, labels=f"GPU {self.rank}")
        yield _named("process_name", self.host, 0, name="host")
        yield from self._steps()
        texts, correlation = op_texts(self.program), 0
        for track in tracks(self.timeline, self.rank):
            yield _named("thread_name", self.rank, FIRST_STREAM + track.number, name=f"stream {track.stream}")
            spans = self._spans(track)
            for op, step, begin, end, launch in zip(*(column.tolist() for column in spans), strict=True):
                if _on_host(self.ops[op]):
                    yield self._event("cpu_op", texts.names[op], (self.host, 1), begin, end - begin, {})
                    continue
                correlation += 1
                args = {**self._args(self.ops[op]), **texts.args[op], "step": step, "correlation": correlation}
                yield self._kernel(self.ops[op], texts.names[op], FIRST_STREAM + track.number, (begin, end), args)
                called = "cudaMemcpyAsync" if isinstance(self.ops[op], Copy) else "cudaLaunchKernel"
                of_call = {"correlation": correlation, "External id": correlation}
                yield self._event("cuda_runtime", called, (self.host, 1), launch, 1, of_call)

    def _steps(self) -> Iterator[dict[str, Any]]:
        """Yield the range of each step on the host, and an empty one at the end."""
        begins = [self.first[int(step)] - self.lead for step in self.steps]
        for number, (begin, end) in enumerate(zip(begins, [*begins[1:], self.last], strict=True)):
            yield self._event("user_annotation", f"ProfilerStep#{number}", (self.host, 1), begin, end - begin, {})
        name = f"ProfilerStep#{len(begins)}"
        yield self._event("user_annotation", name, (self.host, 1), self.last, EMPTY_STEP, {})

    def _spans(self, track: Track) -> _Spans:
        own = self.timeline.of(self.rank)
        mine = np.flatnonzero(op_streams(self.program)[own.op] == track.stream)
        mine = mine[np.lexsort((own.end[mine], own.begin[mine]))]
        op, step = own.op[mine], own.step[mine]
        end = np.maximum.accumulate(_micros(own.end[mine]))
        # messages of one stream may overlap by the latency of their links; kernels of one stream do not
        begin = np.maximum(_micros(own.begin[mine]), np.append(0, end[:-1]) if len(end) else end)
        launch = np.array([self.first[one] for one in step.tolist()], np.int64) - self.lead
        launch += np.minimum(np.arange(len(op)), self.lead - 1)
        waits = np.isin(op, self.after_delays)
        return _Spans(op, step, begin, end, np.where(waits, np.minimum(_micros(own.ready[mine]), begin), launch))

    def _args(self, op: Op) -> dict[str, Any]:
        """Return the arguments of a kernel as torch has them; for a communication with its group and its size."""
        if not isinstance(op, Collective | Send | Recv):
            return {}
        place = self.timeline.schedule.mesh.axes[op.over].place(self.rank)
        group = self.timeline.schedule.mesh.axes[op.over].groups[place[0]] if place else (self.rank,)
        sent = received = round(op.nbytes)
        name = "send" if isinstance(op, Send) else "recv"
        if isinstance(op, Collective):
            name = COLLECTIVE_NAMES[op.kind][1]
            sent = sent // len(group) if op.kind == "all_gather" else sent
            received = received // len(group) if op.kind == "reduce_scatter" else received
        return {
            "Collective name": name,
            "In msg nelems": sent,
            "Out msg nelems": received,
            "dtype": "Byte",
            "Group size": len(group),
            "Process Group Name": op.over,
            "Process Group Ranks": json.dumps(list(group)),
        }

    def _kernel(self, op: Op, name: str, stream: int, span: tuple[int, int], args: dict[str, Any]) -> dict[str, Any]:
        kind = "kernel"
        if isinstance(op, Copy):
            kind, name = "gpu_memcpy", "Memcpy DtoH (Device -> Pinned)" if op.to == "host" else "Memcpy HtoD (Pinned)"
            args["bytes"] = op.nbytes
        elif isinstance(op, Collective):
            chosen = self.timeline.algorithms.get((op.over.partition(".")[0], op.kind, op.nbytes), ("ring", "Simple"))
            called = COLLECTIVE_NAMES[op.kind][0]
            args["op"], name = name, f"ncclDevKernel_{called}{'' if called == 'SendRecv' else _upper(chosen)}()"
        elif isinstance(op, Send | Recv):
            args["op"], name = name, "ncclDevKernel_SendRecv()"
        args |= {"stream": stream, "device": self.rank, "External id": args["correlation"]}
        return self._event(kind, name, (self.rank, stream), span[0], span[1] - span[0], args)

    def _event(
        self, kind: str, name: str, place: tuple[int, int], begin: int, duration: int, args: dict[str, Any]
    ) -> dict[str, Any]:
        where = {"pid": place[0], "tid": place[1]}
        # no time of a trace is negative
        return {"ph": "X", "cat": kind, "name": name, **where, "ts": begin + self.lead, "dur": duration, "args": args}


def _step_begins(timeline: Timeline) -> dict[int, int]:
    """Return when each step begins on the first rank, µs: the hosts of all ranks are ahead of their GPUs."""
    found: dict[int, int] = {}
    for own in timeline.columns.values():
        for step in np.unique(own.step).tolist():
            begin = _micro(own.begin[own.step == step].min())
            found[step] = min(begin, found.get(step, begin))
    return found


def _upper(chosen: tuple[str, str]) -> str:
    return "".join(f"_{part.upper()}" for part in chosen if part)


def _after_delays(program: Program) -> Iterator[int]:
    """Yield the ops that follow a `Delay` in its stream, or wait for one by name."""
    delays: set[str] = set()
    before: dict[str, Op] = {}
    for number, op in enumerate(program.ops):
        if isinstance(before.get(op.stream), Delay) or delays.intersection(op.after):
            yield number
        if isinstance(op, Delay):
            delays.add(op.name)
        before[op.stream] = op


def _micros(seconds: Floats) -> Integers:
    rounded: Integers = np.rint(seconds * 1e6).astype(np.int64)
    return rounded


def _micro(seconds: float) -> int:
    return round(float(seconds) * 1e6)


def _named(what: str, process: int, thread: int, **args: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "ts": 0, "args": args}


def _on_host(op: Op) -> bool:
    if isinstance(op, Copy):
        return op.on_host
    return isinstance(op, Delay) or (isinstance(op, Compute) and op.on == "host")
