"""A rank has one process for each of its streams; it issues runs of ops in order and writes down when each was done."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simpy import Environment, Event

from simulator.engine.course import Course, Floats, Played
from simulator.engine.ensemble import Seat
from simulator.engine.firing import fire
from simulator.engine.issue import Issue, Run, Turn
from simulator.engine.outcome import Waiting
from simulator.engine.pace import Pace
from simulator.engine.processor import Processor
from simulator.engine.rendezvous import Rendezvous
from simulator.engine.writing import Writing
from simulator.hashing import Indices
from simulator.timeline import Columns


@dataclass(slots=True)
class Head:
    """Where a stream stands: the turn at its head, of which step.

    It waits for an op of its own rank, or for partners, of whom some *came*.
    """

    stream: str
    turn: Turn | None = None
    step: int = 0
    awaits: int | None = None
    came: Sequence[int] | None = None


@dataclass(eq=False)
class Rank:
    """Rank *number*: *issue* is its program, *pace* how long its ops take where that is known.

    *processors* are those that it computes on, by where: ``gpu``, ``host``; None where nothing disturbs it. On the host
    it stands for a *crowd* of ranks that do the same. Its communications begin at the *rendezvous*; runs that are tied
    to others it plays from its *seat*.
    """

    env: Environment
    number: int
    issue: Issue
    pace: Pace
    steps: int
    rendezvous: Rendezvous
    processors: Mapping[str, Processor | None]
    crowd: int = 1
    seat: Seat | None = None
    heads: list[Head] = field(default_factory=list)
    _ended: bytearray = field(default_factory=bytearray)
    _watchers: dict[int, Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._writing = Writing(self.issue, self._undisturbed)
        self._columns: Columns | None = None

    def columns(self) -> Columns:
        """All spans."""
        if self._columns is None:
            self._columns = self._writing.columns()
        return self._columns

    @property
    def written(self) -> int:
        """How many ops are done."""
        return self._writing.count

    def waiting(self) -> Iterator[Waiting]:
        """The streams that have not finished."""
        for head in self.heads:
            if head.turn:
                run, came = head.turn.run, tuple(head.came or ())
                place = run.template.index(run.tie) if run.tie is not None else run.ops[0]
                yield Waiting(self.number, head.stream, head.turn.first + place, head.step, head.awaits, came)

    def start(self) -> None:
        """Begin the processes of all streams."""
        self._ended = bytearray(self.issue.ops * self.steps)
        for stream, turns in self.issue.streams.items():
            head = Head(stream)
            self.heads.append(head)
            self.env.process(self._stream(head, turns))

    def _stream(self, head: Head, turns: tuple[Turn, ...]) -> Generator[Event, Any, None]:
        env, ended, writing = self.env, self._ended, self._writing
        for step in range(self.steps):
            base = step * self.issue.ops
            head.step = step
            for turn in turns:
                head.turn = turn
                for op in turn.waits:
                    if not ended[base + op]:
                        head.awaits = op
                        yield self._end_of(base + op)
                        head.awaits = None
                run = turn.run
                ready = env.now
                if run.meets:
                    meeting = self.rendezvous.arrive(self.number, turn, step)
                    head.came = meeting.came
                    yield meeting.done
                    head.came = None
                    writing.met(turn, step, ready, meeting.began, env.now)
                elif run.tie is None and self.processors[run.on] is None:
                    course = self.pace.course(run, base + turn.first)
                    if course.total:
                        yield env.timeout(course.total)
                    writing.computed(turn, step, ready)
                else:
                    play = yield self._compute(head, turn, base)
                    head.came = None
                    writing.computed(turn, step, ready, None if play.undisturbed else play)
                if run.watched:
                    self._end(base + turn.first + run.last)
        head.turn = None

    def _compute(self, head: Head, turn: Turn, base: int) -> Event:
        """Begin the ops of *turn* on a processor; the event returned succeeds at the end, with the play."""
        run = turn.run
        processor = self.processors[run.on]
        assert processor is not None
        course: Course
        if run.tie is not None:
            assert self.seat is not None
            voice = course = self.seat.course(turn, head.step)
            head.came = voice.performance.came
        else:
            course = self.pace.course(run, base + turn.first)
        return processor.compute(course, self.crowd if run.on == "host" else 1)

    def _undisturbed(self, run: Run, numbers: Indices, begins: Floats) -> Played:
        """When the ops of *run* ran in its turns *numbers*, begun at *begins*, where nothing slowed them down."""
        if run.tie is not None:
            assert self.seat is not None
            return self.seat.played(run, numbers)
        firsts, steps = self.issue.places(run, numbers)
        alone = self.pace.alone(run, firsts + steps * self.issue.ops)
        return Played(*(begins[:, None] + times for times in alone))

    def _end_of(self, op: int) -> Event:
        event = self._watchers.get(op)
        if event is None:
            event = self._watchers[op] = self.env.event()
        return event

    def _end(self, op: int) -> None:
        self._ended[op] = 1
        event = self._watchers.pop(op, None)
        if event is not None:
            fire(event)
