"""A job is a function and its argument. Its outcome is the function's result, or a failure."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from simulator.errors import DeadlockError, ExecutionError, SimulatorError

A = TypeVar("A")
R = TypeVar("R")

Job: TypeAlias = tuple[Callable[[A], R], A]


@dataclass(frozen=True, slots=True)
class Failure:
    """A job without a result; *message* says why, for the user. *kind*: the class of the error, empty if none came."""

    message: str
    kind: str = ""

    def error(self) -> SimulatorError:
        """Return the error of a command that cannot go on without the result."""
        return (DeadlockError if self.kind == DeadlockError.__name__ else ExecutionError)(self.message)


def outcome(function: Callable[[A], R], argument: A) -> R | Failure:
    """Return the result of *function* for *argument*, or the failure if it raises an error."""
    try:
        return function(argument)
    except Exception as error:
        return failure(error)


def executed(job: bytes) -> bytes:
    """Return the pickled outcome of a pickled *job*: a failure also if it cannot be read, or its result not pickled."""
    try:
        function, argument = pickle.loads(job)
        return pickle.dumps(outcome(function, argument))
    except Exception as error:
        return pickle.dumps(failure(error))


def failure(error: Exception) -> Failure:
    """Return the failure for *error*: the text of an error for users, else the error's type, text and place.

    >>> failure(ZeroDivisionError("division by zero")).message
    'unexpected ZeroDivisionError: division by zero'
    """
    kind = type(error).__name__
    if isinstance(error, SimulatorError):
        return Failure(str(error), kind)
    if isinstance(error, MemoryError):
        return Failure("the memory of the machine does not suffice", kind)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return Failure(f"unexpected {kind}: {error}{place}", kind)
