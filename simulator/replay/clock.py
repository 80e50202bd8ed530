"""Clocks of ranks. Ranks of one machine share a clock; others align theirs with rank 0's by probes.

Times are seconds of the monotonic clock, which network namespaces share.
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
"""Of prctl(2): the ns by which the kernel may delay a wake-up to save energy; 50,000 by default."""

PROBES = 16
"""Round trips to rank 0. The quickest counts."""


def sleep_until(moment: float) -> None:
    """Sleep until *moment*, and never less."""
    while (left := moment - now()) > 0:
        time.sleep(left)


def wake_promptly() -> None:
    """Let the kernel wake this process, and all threads that it will start, as soon as a sleep ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)


def run_realtime() -> None:
    """Give this process, and all threads that it will start, real-time priority if that is permitted."""
    if sys.platform == "linux":
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def offset(rank: int, world_size: int) -> float:
    """Return the seconds to add to this rank's clock to get rank 0's. All ranks call this at the same time.

    0 if all ranks are on one machine, according to torchrun. The error is at most half of a round trip.
    """
    if int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) == world_size:
        return 0.0
    mine = [_probe(rank, one) for one in range(1, world_size)]
    return mine[rank - 1] if rank else 0.0


def quickest(answers: Iterable[tuple[float, float, float]]) -> float:
    """Return the offset from the quickest of *answers*: (time sent, time on rank 0's clock, time received), s.

    The remote time is taken as that of the middle of the round trip (Cristian, "Probabilistic clock synchronization",
    1989).

    >>> quickest([(1.0, 13.0, 5.0), (6.0, 17.0, 8.0)])
    10.0
    """
    sent, remote, received = min(answers, key=lambda answer: answer[2] - answer[0])
    return remote - (sent + received) / 2


def _probe(rank: int, one: int) -> float:
    """The offset of rank *one*, which exchanges messages with rank 0. Other ranks do nothing."""
    import torch
    import torch.distributed as dist

    moment, answers = torch.zeros(1, dtype=torch.float64), []
    for _ in range(PROBES if rank in (0, one) else 0):
        sent = now()
        if rank == one:
            dist.send(moment, 0)
            dist.recv(moment, 0)
            answers.append((sent, float(moment), now()))
        else:
            dist.recv(moment, one)
            moment.fill_(now())
            dist.send(moment, one)
    return quickest(answers) if answers else 0.0
