"""A processor is shared by the computations that run on it at once, and by the SMs that collectives take.

Each of n computations gets the n-th part of what the collectives leave; one that stands for several counts as many. A
computation alone on a free processor takes its modelled time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from simpy import Environment, Event

from simulator.engine.course import Course, Play
from simulator.engine.firing import at, fire


@dataclass(slots=True, eq=False)
class _Task:
    """A *play* that stands for a *crowd* of equal ones, at *speed*; it is looked at again at the time *due*.

    Once *over* it lets go of both: those who wait for the same collectives may still hold it, and of millions of tasks
    none may be kept by a circle.
    """

    done: Event
    crowd: int
    play: Play = field(init=False)
    speed: float = 0.0
    due: float = inf
    over: bool = False


@dataclass(slots=True)
class Processor:
    """One GPU, or one host processor, as its computations see it."""

    env: Environment
    _tasks: list[_Task] = field(default_factory=list)
    _reserved: list[float] = field(default_factory=list)

    def compute(self, course: Course, crowd: int = 1) -> Event:
        """Begin computations that stand for *crowd* equal ones.

        The event returned succeeds at the end; its value is the play.
        """
        task = _Task(self.env.event(), crowd)
        task.play = course.play(lambda: self._hasten(task))
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
        tasks = self._tasks
        if not tasks:
            return
        # collectives of several axes at once leave at least the SM that each would get of its own
        free = 1.0
        for share in self._reserved:
            free *= 1.0 - share
        present = tasks[0].crowd if len(tasks) == 1 else sum(task.crowd for task in tasks)
        for task in tasks:
            self._set_speed(task, free / present)

    def _set_speed(self, task: _Task, speed: float) -> None:
        if speed == task.speed:
            return
        slower, task.speed = speed < task.speed, speed
        task.play.turn(self.env.now, speed)
        # who slows down is looked at when it would have ended, and then again
        if not slower:
            self._hasten(task)

    def _hasten(self, task: _Task) -> None:
        """It may end sooner than it was to be looked at."""
        if task.over:
            return
        soonest = task.play.soonest()
        if soonest < task.due:
            self._look_again(task, soonest)

    def _look_again(self, task: _Task, time: float) -> None:
        task.due = time
        at(self.env, max(time, self.env.now), lambda _event: self._look(task, time))

    def _look(self, task: _Task, due: float) -> None:
        if due != task.due or task.over:
            return
        end = task.play.end()
        if end > max(due, self.env.now):
            self._look_again(task, end)
            return
        self._tasks.remove(task)
        play, done = task.play, task.done
        task.over = True
        del task.play, task.done
        self._share()
        fire(done, play)
