"""A rank has one process for each of its streams; it issues ops in order and writes down when each was done."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simpy import Environment, Event

from simulator.engine.issue import Issue, Run
from simulator.engine.processor import Processor
from simulator.engine.rendezvous import Meeting
from simulator.timeline import Record

Meet = Callable[[int, Run, int], tuple[Hashable, Meeting]]
"""(rank, run, step) -> the meeting that the run's communication takes part in, and its key."""


@dataclass(slots=True)
class Head:
    """Where a stream stands: the run at its head, of which step, waiting for an op of its own rank or at a meeting."""

    stream: str
    run: Run | None = None
    step: int = 0
    awaits: int | None = None
    meeting: Hashable = None


@dataclass(eq=False)
class Rank:
    """Rank *number*: *issue* is its program, *seconds* the times of its ops where they are known, step after step.

    *processors* are those that it computes on, by where: ``gpu``, ``host``; None where nothing disturbs it.
    On the host it stands for a *crowd* of ranks that do the same.
    """

    env: Environment
    number: int
    issue: Issue
    seconds: Sequence[float]
    steps: int
    meet: Meet
    processors: Mapping[str, Processor | None]
    crowd: int = 1
    records: list[Record] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    _ops: int = 0
    _ended: bytearray = field(default_factory=bytearray)
    _watchers: dict[int, Event] = field(default_factory=dict)

    def start(self) -> None:
        """Begin the processes of all streams."""
        self._ops = sum(len(run.ops) for runs in self.issue.streams.values() for run in runs)
        self._ended = bytearray(self._ops * self.steps)
        for stream, runs in self.issue.streams.items():
            head = Head(stream)
            self.heads.append(head)
            self.env.process(self._stream(head, runs))

    def _stream(self, head: Head, runs: tuple[Run, ...]) -> Generator[Event, Any, None]:
        for step in range(self.steps):
            base = step * self._ops
            head.step = step
            for run in runs:
                head.run = run
                for op in run.waits:
                    if not self._ended[base + op]:
                        head.awaits = op
                        yield self._end_of(base + op)
                        head.awaits = None
                if run.meeting is not None:
                    yield from self._communicate(head, run, step)
                elif (processor := self.processors[run.on]) is None:
                    yield from self._undisturbed(run, step, base)
                else:
                    ready = self.env.now
                    seconds = [self.seconds[base + op] for op in run.ops]
                    ends = yield processor.compute(seconds, run.steady, self.crowd if run.on == "host" else 1)
                    self._write_down(run, step, [ready, *ends[:-1]], ends)
                if run.watched:
                    self._end(base + run.ops[-1])
        head.run = None

    def _communicate(self, head: Head, run: Run, step: int) -> Generator[Event, None, None]:
        ready = self.env.now
        head.meeting, meeting = self.meet(self.number, run, step)
        yield meeting.done
        head.meeting = None
        self.records.append(Record(run.ops[0], step, ready, meeting.began, self.env.now))

    def _undisturbed(self, run: Run, step: int, base: int) -> Generator[Event, None, None]:
        """A run as one event; when each op ends is known beforehand."""
        end = self.env.now
        ends = [end := end + self.seconds[base + op] for op in run.ops]
        begins = [self.env.now, *ends[:-1]]
        if end > self.env.now:
            yield self.env.timeout(end - self.env.now)
            # the clock may be off by the last digit
            ends[-1] = self.env.now
            begins[-1] = min(begins[-1], self.env.now)
        self._write_down(run, step, begins, ends)

    def _write_down(self, run: Run, step: int, begins: Sequence[float], ends: Sequence[float]) -> None:
        self.records += [Record(op, step, b, b, e) for op, b, e in zip(run.ops, begins, ends, strict=True)]

    def _end_of(self, op: int) -> Event:
        event = self._watchers.get(op)
        if event is None:
            event = self._watchers[op] = self.env.event()
        return event

    def _end(self, op: int) -> None:
        self._ended[op] = 1
        event = self._watchers.pop(op, None)
        if event is not None:
            event.succeed()
