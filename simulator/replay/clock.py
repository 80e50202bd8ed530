"""Clocks of ranks: those of one machine share one, those of others are aligned by asking rank 0 for the time.

Moments are seconds of the monotonic clock, which network namespaces share.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

now = time.monotonic

PR_SET_TIMERSLACK = 29
"""Of prctl(2): by how many ns the kernel may wake a thread late to save energy; 50,000 unless set."""

QUESTIONS = 16
"""Asked of rank 0; the quickest answer counts."""


def sleep_until(moment: float) -> None:
    """Sleep until *moment*, and not before it."""
    while (left := moment - now()) > 0:
        time.sleep(left)


def wake_promptly() -> None:
    """Let this process, in all threads that it will start, be woken as soon as a sleep is over."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)


def before_others() -> None:
    """Let this process, in all threads that it will start, run before all that is not of real time, where it may."""
    if sys.platform == "linux":
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def offset(rank: int, world_size: int) -> float:
    """Seconds to add to this rank's clock to get rank 0's; all ranks ask, one after the other.

    0 where all ranks are on one machine, as torchrun tells. Good to half of a round trip.
    """
    if int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) == world_size:
        return 0.0
    mine = [_asked(rank, one) for one in range(1, world_size)]
    return mine[rank - 1] if rank else 0.0


def quickest(answers: Iterable[tuple[float, float, float]]) -> float:
    """The offset by the quickest of *answers*: (asked, what rank 0's clock said, answered), s.

    The answer is taken to be of the middle of the round trip (Cristian, "Probabilistic clock synchronization", 1989).

    >>> quickest([(1.0, 13.0, 5.0), (6.0, 17.0, 8.0)])
    10.0
    """
    asked, said, answered = min(answers, key=lambda answer: answer[2] - answer[0])
    return said - (asked + answered) / 2


def _asked(rank: int, one: int) -> float:
    """Rank *one* asks rank 0 for the time; the others do nothing."""
    import torch
    import torch.distributed as dist

    moment, answers = torch.zeros(1, dtype=torch.float64), []
    for _ in range(QUESTIONS if rank in (0, one) else 0):
        asked = now()
        if rank == one:
            dist.send(moment, 0)
            dist.recv(moment, 0)
            answers.append((asked, float(moment), now()))
        else:
            dist.recv(moment, one)
            moment.fill_(now())
            dist.send(moment, one)
    return quickest(answers) if answers else 0.0
