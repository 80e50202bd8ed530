"""Replay runs a schedule on real processes with real communication. It is a second interpreter beside the simulator:
one thread for each stream of a rank executes its ops in order.

It measures a timeline of the same form, so validation is the comparison of two timelines.
"""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from clustersim.simulator.analysis.timeline import NO_COMMUNICATION, Columns, Floats, Timeline
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ReplayError
from clustersim.simulator.replay import clock
from clustersim.simulator.replay.launch import TIMEOUT, launch
from clustersim.simulator.replay.rank_process import Member, NetworkPlace
from clustersim.simulator.replay.rendezvous import (
    MessageBuffers,
    Rendezvous,
    communications,
    host_elements,
    longest_buffers,
    rendezvous_of,
)
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Op, Recv, Send, scaled_bytes
from clustersim.simulator.schedule.schedule import Schedule

if TYPE_CHECKING:
    from clustersim.simulator.replay.communication import Communication

COMPUTE = ("sleep", "spin", "kernels")
"""Ways to compute: sleep or spin for the modelled time, or execute the kernels."""


@dataclass(frozen=True)
class Replay:
    """The *timelines* of the repetitions after the warm-up, in order."""

    timelines: tuple[Timeline, ...]

    @property
    def step_times(self) -> list[float]:
        """Seconds of a step, for each repetition."""
        return [timeline.step_time for timeline in self.timelines]

    @property
    def median(self) -> Timeline:
        """The timeline of median step time; of an even number the lower one."""
        return self.timelines[self.step_times.index(median_low(self.step_times))]


class BrokenReplayError(ReplayError):
    """A replay that did not end. *timelines*: the finished repetitions, the warm-up first."""

    def __init__(self, message: str, timelines: Sequence[Timeline]) -> None:
        self.timelines = tuple(timelines)
        super().__init__(message)


def replay(
    schedule: Schedule,
    seconds: Sequence[Sequence[float]],
    *,
    backend: str = "gloo",
    compute: str = "sleep",
    repeat: int = 3,
    places: Sequence[NetworkPlace] | None = None,
    timeout: float = TIMEOUT,
) -> Replay | None:
    """Run *schedule* on processes of this machine or of torchrun, *repeat* times after a warm-up.

    *seconds*: the modelled durations of the ops, by rank (`durations`). Each rank runs at its one of *places* (default:
    on the loopback interface). Raises `BrokenReplayError` if a rank fails, or after *timeout* s. Under torchrun only
    rank 0 gets the replay.
    """
    jobs = [RankJob(schedule, tuple(each), compute, 1 + repeat) for each in seconds]
    moments_of: list[dict[int, Floats]] = [{} for _ in range(1 + repeat)]

    def on_report(rank: int, report: tuple[int, Floats]) -> None:
        number, moments = report
        moments_of[number][rank] = moments

    try:
        results = launch(execute, jobs, backend=backend, places=places, timeout=timeout, on_report=on_report)
    except ReplayError as error:
        whole = [[ranks[r] for r in sorted(ranks)] for ranks in moments_of if len(ranks) == len(jobs)]
        raise BrokenReplayError(str(error), [measured(schedule, moments) for moments in whole]) from None
    if results is None:
        return None
    return Replay(tuple(measured(schedule, moments) for moments in list(zip(*results, strict=True))[1:]))


def measured(schedule: Schedule, moments: Sequence[Floats]) -> Timeline:
    """Return the timeline of (ready, end) of every op of each rank, step after step, in s.

    A communication begins when its last partner is ready. A message ends, for both partners, when its receiver has it:
    the sender's operating system takes it over earlier.
    """
    numbers = communications(schedule)
    each = 1 + max((int(own.max(initial=NO_COMMUNICATION)) for own in numbers), default=NO_COMMUNICATION)
    numbers = [
        np.concatenate([np.where(own == NO_COMMUNICATION, own, own + step * each) for step in range(schedule.steps)])
        for own in numbers
    ]
    all_ready, received = np.full((2, each * schedule.steps + 1), -np.inf)
    for rank, (own, (ready, end)) in enumerate(zip(numbers, (of_rank.T for of_rank in moments), strict=True)):
        np.maximum.at(all_ready, own, ready)
        receives = _where(schedule, rank, Recv) & (own != NO_COMMUNICATION)
        received[own[receives]] = end[receives]
    # ops without communication have the last place
    all_ready[NO_COMMUNICATION] = received[NO_COMMUNICATION] = -np.inf
    columns = []
    for rank, (own, (ready, end)) in enumerate(zip(numbers, (of_rank.T for of_rank in moments), strict=True)):
        last = np.where(_where(schedule, rank, Send), np.maximum(end, received[own]), end)
        # a rank that only sends may end a collective before its last partner is ready
        begin = np.minimum(np.maximum(ready, all_ready[own]), last)
        step, op = np.divmod(np.arange(len(own)), len(own) // schedule.steps or 1)
        order = np.argsort(last, kind="stable")
        columns.append(Columns(op[order], step[order], ready[order], begin[order], last[order], own[order]))
    return Timeline.unfolded(schedule, columns)


def _where(schedule: Schedule, rank: int, kind: type[Op]) -> npt.NDArray[np.bool_]:
    """Whether each op of *rank*, step after step, is of *kind*."""
    return np.tile(schedule.program(rank).column(lambda op: isinstance(op, kind), np.bool_), schedule.steps)


def scaled(schedule: Schedule, factor: float) -> Schedule:
    """Return *schedule* with all communicated bytes multiplied by *factor*."""

    def change(op: Op) -> tuple[Op]:
        if isinstance(op, Collective) and op.per_peer is not None:
            op = replace(op, nbytes=op.nbytes * factor, per_peer=scaled_bytes(op.per_peer, factor))
            return (op,)
        if isinstance(op, Collective | Send | Recv | Copy):
            return (replace(op, nbytes=op.nbytes * factor),)
        return (op,)

    return schedule.map_programs(lambda program: program.map_ops(change))


LEAD = 0.02
"""Seconds from the agreement on a start time to the start. Within them the last rank must receive it."""


@dataclass(frozen=True)
class RankJob:
    """The work of one rank: *schedule*, the modelled *seconds* of its ops, step after step, and the way to *compute*.

    *repetitions* includes the warm-up.
    """

    schedule: Schedule
    seconds: Sequence[float]
    compute: str
    repetitions: int


def execute(member: Member, job: RankJob) -> list[Floats]:
    """Execute *job* and return, for each repetition, (ready, end) of every op, step after step, in s after the common
    start.

    Each repetition is reported with its number when it ends.
    """
    from clustersim.simulator.replay.communication import Communication

    clock.wake_promptly()
    communication = Communication(job.schedule, member)
    communication.open()
    execution = RankExecution(member, job, communication)
    gc.disable()
    return [execution.reported(number) for number in range(job.repetitions)]


@dataclass(frozen=True, slots=True)
class StreamTask:
    """An *op* at *place* in its program. *waits*: places of the ops of other streams that must have ended."""

    place: int
    op: Op
    rendezvous: Rendezvous | None
    waits: tuple[int, ...]


class RankExecution:
    """The *job* of *member* with the state that all repetitions share: buffers and the way to compute."""

    def __init__(self, member: Member, job: RankJob, communication: Communication) -> None:
        from clustersim.simulator.replay.computation import computation

        self.member, self.job, self.communication = member, job, communication
        self.streams = tasks(job.schedule, member.rank)
        self.watched = {place for stream in self.streams.values() for task in stream for place in task.waits}
        self.buffers = {name: self._buffers([task.op for task in stream]) for name, stream in self.streams.items()}
        self.computations = {name: computation(job.compute, member.device) for name in self.streams}
        self.ops = len(job.schedule.program(member.rank).ops)
        self.threads = {name: _thread() for name in self.streams}

    def _buffers(self, ops: Sequence[Op]) -> MessageBuffers:
        import torch

        source, sink = longest_buffers(self.job.schedule, self.member.rank, ops)
        device = self.communication.device(ops)
        host = torch.zeros(host_elements(ops), pin_memory=device != "cpu")
        return MessageBuffers(torch.zeros(source, device=device), torch.zeros(sink, device=device), host)

    def reported(self, number: int) -> Floats:
        """Execute repetition *number*; report and return (ready, end) of every op."""
        moments = self._repetition(self._start())
        self.member.report((number, moments))
        return moments

    def _start(self) -> float:
        """A common start time of all ranks in the near future, on this rank's clock."""
        import torch
        import torch.distributed as dist

        ahead = clock.offset(self.member.rank, self.member.world_size)
        moment = torch.zeros(1, dtype=torch.float64)
        dist.all_reduce(moment)
        moment.fill_(clock.now() + LEAD)
        dist.broadcast(moment, 0)
        return float(moment) - ahead

    def _repetition(self, start: float) -> Floats:
        steps = self.job.schedule.steps
        moments = np.full((steps * self.ops, 2), np.nan)
        ended = {step * self.ops + place: threading.Event() for step in range(steps) for place in self.watched}
        outcomes: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        for name in self.streams:
            stream = Stream(self, name, start, moments, ended)
            self.threads[name].put(partial(stream.run, outcomes))
        for _ in self.streams:
            failure = outcomes.get()
            if failure is not None:
                raise failure
        return moments - start


def _thread() -> queue.SimpleQueue[Callable[[], None]]:
    """Start a thread and return its queue of calls.

    A stream keeps its thread over all repetitions: what libraries prepare for each thread (handles and plans of cuBLAS
    and cuDNN, 50 ms on an H100) is part of the warm-up.
    """
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def execute() -> None:
        while True:
            calls.get()()

    threading.Thread(target=execute, daemon=True).start()
    return calls


@dataclass
class Stream:
    """One stream in one repetition. It writes *moments* and sets the events of *ended*."""

    execution: RankExecution
    name: str
    start: float
    moments: Floats
    ended: Mapping[int, threading.Event]
    _due: float | None = None

    def run(self, outcomes: queue.SimpleQueue[Exception | None]) -> None:
        """Execute all ops in turn. Put the exception, or None, into *outcomes*."""
        try:
            with _device_stream(self.execution.member.device):
                self._run()
        except Exception as error:
            outcomes.put(error)
        else:
            outcomes.put(None)

    def _run(self) -> None:
        execution = self.execution
        clock.sleep_until(self.start)
        self._due = self.start
        for step in range(execution.job.schedule.steps):
            base = step * execution.ops
            for task in execution.streams[self.name]:
                self._do(task, base)

    def _do(self, task: StreamTask, base: int) -> None:
        place = base + task.place
        for awaited in task.waits:
            event = self.ended[base + awaited]
            if not event.is_set():
                event.wait()
                self._due = None
        ready = clock.now()
        if isinstance(task.op, Compute):
            self._compute(task.op, ready, self.execution.job.seconds[place])
        else:
            self._communicate(task)
        self.moments[place] = ready, clock.now()
        if place in self.ended:
            self.ended[place].set()

    def _compute(self, op: Compute, ready: float, seconds: float) -> None:
        """Execute a computation.

        One that follows another without a wait begins at that one's due time: delays do not add up.
        """
        self._due = (ready if self._due is None else self._due) + seconds
        self.execution.computations[self.name](op, self._due)

    def _communicate(self, task: StreamTask) -> None:
        execution = self.execution
        execution.communication.execute(task.op, task.rendezvous, execution.buffers[self.name])
        if execution.member.device != "cpu":
            import torch

            torch.cuda.current_stream().synchronize()
        self._due = None


def tasks(schedule: Schedule, rank: int) -> dict[str, tuple[StreamTask, ...]]:
    """Return the tasks of each stream of *rank*, in order, with names resolved to places in the program."""
    program = schedule.program(rank)
    place = {op.name: number for number, op in enumerate(program.ops)}
    stream_of = {op.name: op.stream for op in program.ops}
    meets = rendezvous_of(schedule, rank)

    def task(op: Op) -> StreamTask:
        waits = tuple(place[name] for name in op.after if stream_of[name] != op.stream)
        return StreamTask(place[op.name], op, meets[place[op.name]], waits)

    return {name: tuple(map(task, ops)) for name, ops in program.streams().items()}


def _device_stream(device: str) -> Any:
    """A CUDA stream of its own for each stream on a GPU."""
    import torch

    return torch.cuda.stream(torch.cuda.Stream(device) if device != "cpu" else None)  # type: ignore[no-untyped-call]
