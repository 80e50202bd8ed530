"""A processor is shared by the computations that run on it at once, and by the SMs that collectives take.

Each of n computations gets the n-th part of what the collectives leave; one that stands for several counts as many. A
computation alone on a free processor takes its modelled time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simpy import Environment, Event


@dataclass(slots=True, eq=False)
class _Task:
    left: float
    done: Event
    crowd: int
    speed: float = 0.0
    since: float = 0.0
    version: int = 0


@dataclass(slots=True)
class Processor:
    """One GPU, or one host processor, as its computations see it."""

    env: Environment
    _tasks: list[_Task] = field(default_factory=list)
    _reserved: list[float] = field(default_factory=list)

    def compute(self, seconds: float, crowd: int = 1) -> Event:
        """Begin a computation that takes *seconds* alone and stands for *crowd* equal ones; the event is its end."""
        task = _Task(seconds, self.env.event(), crowd, since=self.env.now)
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
        task.left = max(0.0, task.left - task.speed * (now - task.since))
        task.speed, task.since = speed, now
        task.version += 1
        version = task.version
        timeout = self.env.timeout(task.left / speed)
        timeout.callbacks.append(lambda _event: self._end(task, version))

    def _end(self, task: _Task, version: int) -> None:
        if version == task.version:
            self._tasks.remove(task)
            task.done.succeed()
            self._share()
