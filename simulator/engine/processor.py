"""A processor is shared by the computations that run on it at once, and by the SMs that collectives take.

Each of n computations gets the n-th part of what the collectives leave; one that stands for several counts as many. A
computation alone on a free processor takes its modelled time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simpy import Environment, Event


@dataclass(slots=True, eq=False)
class _Task:
    """*seconds* of each part alone, of which those not *steady* slow down; *ends* are those of the parts so far.

    *spent* seconds of work have gone into the next part; *since* when the *speed* is what it is.
    """

    seconds: Sequence[float]
    steady: Sequence[bool]
    done: Event
    crowd: int
    since: float
    ends: list[float] = field(default_factory=list)
    spent: float = 0.0
    speed: float = 0.0
    version: int = 0

    def advance(self, now: float) -> None:
        """Write down which parts have ended since the speed last changed."""
        moment = self.since
        while self.speed and len(self.ends) < len(self.seconds):
            part = len(self.ends)
            speed = 1.0 if self.steady[part] else self.speed
            end = moment + (self.seconds[part] - self.spent) / speed
            if end > now:
                self.spent += (now - moment) * speed
                break
            self.ends.append(end)
            self.spent, moment = 0.0, end
        self.since = now

    def remaining(self) -> float:
        """Seconds until the last part ends if the speed stays."""
        part = len(self.ends)
        rest = zip(self.seconds[part:], self.steady[part:], strict=True)
        total = sum(seconds if steady else seconds / self.speed for seconds, steady in rest)
        if part < len(self.seconds):
            total -= self.spent if self.steady[part] else self.spent / self.speed
        return max(0.0, total)


@dataclass(slots=True)
class Processor:
    """One GPU, or one host processor, as its computations see it."""

    env: Environment
    _tasks: list[_Task] = field(default_factory=list)
    _reserved: list[float] = field(default_factory=list)

    def compute(self, seconds: Sequence[float], steady: Sequence[bool], crowd: int = 1) -> Event:
        """Begin computations that take *seconds* alone, one after the other, and stand for *crowd* equal ones.

        The *steady* ones only pass the time. The event returned succeeds at the end, with the end of each as value.
        """
        task = _Task(seconds, steady, self.env.event(), crowd, self.env.now)
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
        task.advance(self.env.now)
        task.speed = speed
        task.version += 1
        version = task.version
        timeout = self.env.timeout(task.remaining())
        timeout.callbacks.append(lambda _event: self._end(task, version))

    def _end(self, task: _Task, version: int) -> None:
        if version != task.version:
            return
        task.advance(self.env.now)
        # the clock may be off by the last digits
        task.ends[len(task.seconds) - 1 :] = [self.env.now]
        task.ends += [self.env.now] * (len(task.seconds) - len(task.ends))
        self._tasks.remove(task)
        task.done.succeed(task.ends)
        self._share()
