"""Events that happen at once: who waits goes on before whatever else is due at this time, and no queue is asked.

A stream that waits is suspended, so it can be resumed in the midst of another one; it then runs until it waits again.
"""

from __future__ import annotations

from simpy import Event


def fire(event: Event, value: object = None) -> None:
    """*event* has happened, with *value*."""
    event._ok, event._value = True, value
    callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]  # as SimPy marks what is processed
    for callback in callbacks:
        callback(event)
