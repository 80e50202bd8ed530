"""A processor is shared by the computations that run on it at once, and by the SMs that collectives take.

Each of n computations gets the n-th part of what the collectives leave; one that stands for several counts as many. A
computation alone on a free processor takes its modelled time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from simpy import Environment, Event

from simulator.engine.pace import Course, Leg


@dataclass(slots=True, eq=False)
class _Task:
    """A *course* in the *legs* that it has been run in so far; *crowd*: how many equal ones it stands for.

    It is looked at again at the time *due*.
    """

    course: Course
    done: Event
    crowd: int
    legs: list[Leg] = field(default_factory=list)
    due: float = inf

    @property
    def speed(self) -> float:
        """The present one; 0 before it is set."""
        return self.legs[-1].speed if self.legs else 0.0

    def work(self, now: float) -> float:
        """What is done."""
        if not self.legs:
            return 0.0
        last = self.legs[-1]
        return self.course.done(last.work, last.speed, now - last.time)

    def end(self) -> float:
        """When it ends if the speed stays, s."""
        last = self.legs[-1]
        return last.time + self.course.left(last.work, last.speed)


@dataclass(slots=True)
class Processor:
    """One GPU, or one host processor, as its computations see it."""

    env: Environment
    _tasks: list[_Task] = field(default_factory=list)
    _reserved: list[float] = field(default_factory=list)

    def compute(self, course: Course, crowd: int = 1) -> Event:
        """Begin computations that stand for *crowd* equal ones.

        The event returned succeeds at the end; its value is the legs in which the course was run.
        """
        task = _Task(course, self.env.event(), crowd)
        self._tasks.append(task)
        self._share()
        return task.done

    def reserve(self, share: float) -> None:
        """A collective takes *share* of the processor (0 to 1) from now on."""
        self._reserved.append(share)
        self._share()

    def release(self, share: float) -> None:
        """A collective that had taken *share* is over."""
        self._reserved.remove(share)
        self._share()

    def _share(self) -> None:
        if not self._tasks:
            return
        # collectives of several axes at once leave at least the SM that each would get of its own
        free = 1.0
        for share in self._reserved:
            free *= 1.0 - share
        present = sum(task.crowd for task in self._tasks)
        for task in self._tasks:
            self._set_speed(task, free / present)

    def _set_speed(self, task: _Task, speed: float) -> None:
        if speed == task.speed:
            return
        now = self.env.now
        task.legs.append(Leg(now, task.work(now), speed))
        end = task.end()
        # who slows down is looked at when it would have ended, and then again
        if end < task.due:
            self._look_again(task, end)

    def _look_again(self, task: _Task, time: float) -> None:
        task.due = time
        timeout = self.env.timeout(max(0.0, time - self.env.now))
        timeout.callbacks.append(lambda _event: self._look(task, time))

    def _look(self, task: _Task, due: float) -> None:
        if due != task.due or task.done.triggered:
            return
        end = task.end()
        if end > max(due, self.env.now):
            self._look_again(task, end)
            return
        self._tasks.remove(task)
        task.done.succeed(task.legs)
        self._share()
