"""A performance is one rank's program on a real device: a thread for each stream, which does its ops in order."""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.replay import clock
from simulator.replay.buffers import Buffers, copied, longest
from simulator.replay.meetings import Meeting, meetings
from simulator.replay.worker import Member
from simulator.schedule import Compute, Op, Schedule
from simulator.timeline import Floats

if TYPE_CHECKING:
    from simulator.replay.communication import Communication

LEAD = 0.02
"""Seconds from the agreement on a start to the start itself, in which the last rank must have heard of it."""


@dataclass(frozen=True)
class Part:
    """What a rank is given: *schedule*, the modelled *seconds* of its ops, step after step, and how to *compute*.

    *repetitions*: the warm-up included.
    """

    schedule: Schedule
    seconds: Sequence[float]
    compute: str
    repetitions: int


def perform(member: Member, part: Part) -> list[Floats]:
    """Do *part* so many times: for each, (ready, end) of every op, step after step, in s after the common start.

    Each is reported, with its number, when it is over.
    """
    from simulator.replay.communication import Communication

    clock.wake_promptly()
    communication = Communication(part.schedule, member)
    communication.open()
    performance = Performance(member, part, communication)
    gc.disable()
    return [performance.reported(number) for number in range(part.repetitions)]


@dataclass(frozen=True, slots=True)
class Task:
    """An *op*, at *place* in its program; *waits*: places of ops of other streams that must have ended."""

    place: int
    op: Op
    meeting: Meeting | None
    waits: tuple[int, ...]


class Performance:
    """The *part* of *member*, with what outlives a repetition: buffers and the way to compute."""

    def __init__(self, member: Member, part: Part, communication: Communication) -> None:
        from simulator.replay.computation import computation

        self.member, self.part, self.communication = member, part, communication
        self.streams = tasks(part.schedule, member.rank)
        self.watched = {place for stream in self.streams.values() for task in stream for place in task.waits}
        self.buffers = {name: self._buffers([task.op for task in stream]) for name, stream in self.streams.items()}
        self.computations = {name: computation(part.compute, member.device) for name in self.streams}
        self.ops = len(part.schedule.program(member.rank).ops)

    def _buffers(self, ops: Sequence[Op]) -> Buffers:
        import torch

        source, sink = longest(self.part.schedule, self.member.rank, ops)
        device = self.communication.device(ops)
        host = torch.zeros(copied(ops), pin_memory=device != "cpu")
        return Buffers(torch.zeros(source, device=device), torch.zeros(sink, device=device), host)

    def reported(self, number: int) -> Floats:
        """(ready, end) of every op in repetition *number*, which is reported too."""
        moments = self._repetition(self._start())
        self.member.report((number, moments))
        return moments

    def _start(self) -> float:
        """A moment on this rank's clock that is the same for all ranks, and soon."""
        import torch
        import torch.distributed as dist

        ahead = clock.offset(self.member.rank, self.member.world_size)
        moment = torch.zeros(1, dtype=torch.float64)
        dist.all_reduce(moment)
        moment.fill_(clock.now() + LEAD)
        dist.broadcast(moment, 0)
        return float(moment) - ahead

    def _repetition(self, start: float) -> Floats:
        steps = self.part.schedule.steps
        moments = np.full((steps * self.ops, 2), np.nan)
        ended = {step * self.ops + place: threading.Event() for step in range(steps) for place in self.watched}
        outcomes: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        for name in self.streams:
            stream = Stream(self, name, start, moments, ended)
            threading.Thread(target=stream.run, args=(outcomes,), daemon=True).start()
        for _ in self.streams:
            failure = outcomes.get()
            if failure is not None:
                raise failure
        return moments - start


@dataclass
class Stream:
    """The thread of one stream in one repetition; it writes down *moments* and sets what has *ended*."""

    performance: Performance
    name: str
    start: float
    moments: Floats
    ended: Mapping[int, threading.Event]
    _due: float | None = None

    def run(self, outcomes: queue.SimpleQueue[Exception | None]) -> None:
        """Do all ops in turn; what went wrong, or None, goes to *outcomes*."""
        try:
            with _device_stream(self.performance.member.device):
                self._run()
        except Exception as error:
            outcomes.put(error)
        else:
            outcomes.put(None)

    def _run(self) -> None:
        performance = self.performance
        clock.sleep_until(self.start)
        self._due = self.start
        for step in range(performance.part.schedule.steps):
            base = step * performance.ops
            for task in performance.streams[self.name]:
                self._do(task, base)

    def _do(self, task: Task, base: int) -> None:
        place = base + task.place
        for awaited in task.waits:
            event = self.ended[base + awaited]
            if not event.is_set():
                event.wait()
                self._due = None
        ready = clock.now()
        if isinstance(task.op, Compute):
            self._compute(task.op, ready, self.performance.part.seconds[place])
        else:
            self._communicate(task)
        self.moments[place] = ready, clock.now()
        if place in self.ended:
            self.ended[place].set()

    def _compute(self, op: Compute, ready: float, seconds: float) -> None:
        """What follows a computation without waiting is due when that was due: late wakings do not add up."""
        self._due = (ready if self._due is None else self._due) + seconds
        self.performance.computations[self.name](op, self._due)

    def _communicate(self, task: Task) -> None:
        performance = self.performance
        performance.communication.carry_out(task.op, task.meeting, performance.buffers[self.name])
        if performance.member.device != "cpu":
            import torch

            torch.cuda.current_stream().synchronize()
        self._due = None


def tasks(schedule: Schedule, rank: int) -> dict[str, tuple[Task, ...]]:
    """What each stream of *rank* does, in order; names resolved to places in the program."""
    program = schedule.program(rank)
    place = {op.name: number for number, op in enumerate(program.ops)}
    stream_of = {op.name: op.stream for op in program.ops}
    meets = meetings(schedule, rank)

    def task(op: Op) -> Task:
        waits = tuple(place[name] for name in op.after if stream_of[name] != op.stream)
        return Task(place[op.name], op, meets[place[op.name]], waits)

    return {name: tuple(map(task, ops)) for name, ops in program.streams().items()}


def _device_stream(device: str) -> Any:
    """On a GPU each stream of a schedule is one of CUDA's."""
    import torch

    return torch.cuda.stream(torch.cuda.Stream(device) if device != "cpu" else None)  # type: ignore[no-untyped-call]
