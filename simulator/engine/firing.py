"""Events that happen at once, or at a time that is known to the last digit.

What happens at once asks no queue: who waits goes on before whatever else is due at this time. A stream that waits is
suspended, so it can be resumed in the midst of another one; it then runs until it waits again.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush

from simpy import Environment, Event
from simpy.events import NORMAL


def fire(event: Event, value: object = None) -> None:
    """*event* has happened, with *value*."""
    event._ok, event._value = True, value
    callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]  # as SimPy marks what is processed
    for callback in callbacks:
        callback(event)


def at(env: Environment, time: float, call: Callable[[Event], None]) -> None:
    """*call* when it is *time* (s), which a delay from now would reach only as near as it is rounded."""
    event = Event(env)
    event._ok, event._value = True, None
    event.callbacks.append(call)
    heappush(env._queue, (time, NORMAL, next(env._eid), event))
