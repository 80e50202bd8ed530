"""Measurement of communication on real ranks: collectives back to back as in nccl-tests, messages as ping-pong.

A broadcast ends when the last rank has the vector, but its root may continue before that. So barriers separate its
iterations, and each is timed from the root's begin to the last rank's end. In all other kinds no rank can begin the
next iteration before it has its data of the last, and the time is that of a batch over its iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from statistics import pstdev

import torch
import torch.distributed as dist

from simulator.replay import clock
from simulator.replay.buffers import ELEMENT, Buffers, elements, required_elements
from simulator.replay.calibration.measurement import SEND, Measurement, Sweep
from simulator.replay.communication import KINDS, Call
from simulator.replay.worker import Member
from simulator.schedule import Collective


def measure(member: Member, sweep: Sweep) -> list[Measurement]:
    """Measure all of *sweep* as one of its ranks. Rank 0 returns the measurements, and reports each one at once."""
    found = []
    timer = _Timer(member, sweep, clock.offset(member.rank, member.world_size))
    for one in _all(member, sweep):
        measurement = timer.time(one)
        if member.rank == 0:
            member.report(measurement)
            found.append(measurement)
    return found


@dataclass(frozen=True)
class _Timed:
    """One case to time. Every rank calls *once*; ranks outside *ranks* do nothing in it."""

    kind: str
    ranks: tuple[int, ...]
    nbytes: float
    once: Callable[[], None]
    rounds: int = 1

    @property
    def apart(self) -> bool:
        """Whether barriers must separate the iterations."""
        return self.kind == "broadcast"


def _all(member: Member, sweep: Sweep) -> Iterator[_Timed]:
    for kind in sweep.kinds:
        for size in sweep.sizes:
            if kind == SEND:
                yield from (_message(member, pair, size) for pair in sweep.pairs)
            else:
                yield _collective(member, kind, size)


def _collective(member: Member, kind: str, size: int) -> _Timed:
    ranks = tuple(range(member.world_size))
    op = Collective(name=kind, kind=kind, over="all", nbytes=size)
    source, sink = (torch.zeros(n, device=member.device) for n in required_elements(op, len(ranks)))
    n, m = elements(size), elements(size, len(ranks))
    call = Call(dist.group.WORLD, ranks, member.rank, 0, n, m, Buffers(source, sink))
    parted = kind in ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
    nbytes = ELEMENT * (m * len(ranks) if parted else n)
    return _Timed(kind, ranks, nbytes, lambda: KINDS[kind](call))


def _message(member: Member, pair: tuple[int, int], size: int) -> _Timed:
    """A ping-pong: two messages."""
    first, second = pair
    vector = torch.zeros(elements(size), device=member.device)

    def once() -> None:
        if member.rank == first:
            dist.send(vector, second)
            dist.recv(vector, second)
        elif member.rank == second:
            dist.recv(vector, first)
            dist.send(vector, first)

    return _Timed(SEND, pair, ELEMENT * len(vector), once, rounds=2)


@dataclass
class _Timer:
    """Times cases on all ranks together. *offset* (s) aligns this rank's clock with that of rank 0."""

    member: Member
    sweep: Sweep
    offset: float

    def time(self, one: _Timed) -> Measurement:
        """Return the measurement of *one*, the same on every rank."""
        sweep = self.sweep
        warm = self._within(one, 1, max(1, sweep.warmup), sweep.batch_seconds)
        iterations = max(1, min(sweep.iterations, int(sweep.batch_seconds / min(warm))))
        enough = sweep.batches * sweep.batch_seconds
        times = sorted(each / one.rounds for each in self._within(one, iterations, sweep.batches, enough))
        seconds = times[(len(times) - 1) // 4]
        return Measurement(one.kind, one.ranks, one.nbytes, seconds, pstdev(times) / seconds)

    def _within(self, one: _Timed, iterations: int, most: int, enough: float) -> list[float]:
        """Seconds of an iteration in each of at most *most* batches, fewer if these have taken *enough* s."""
        times: list[float] = []
        while len(times) < most and iterations * sum(times) < enough:
            times.append(self._batch(one, iterations))
        return times

    def _batch(self, one: _Timed, iterations: int) -> float:
        """Seconds of an iteration, the mean over *iterations*."""
        if one.apart:
            return sum(self._span(one, 1, from_root=True) for _ in range(iterations)) / iterations
        return self._span(one, iterations) / iterations

    def _span(self, one: _Timed, iterations: int, *, from_root: bool = False) -> float:
        """Seconds of *iterations* from the first rank's (or the root's) begin to the last rank's end."""
        takes_part = self.member.rank in one.ranks
        dist.all_reduce(torch.zeros(1))  # a barrier among hosts, for every backend
        begin = self._now()
        for _ in range(iterations if takes_part else 0):
            one.once()
        end = self._now()
        if not takes_part or (from_root and self.member.rank != one.ranks[0]):
            begin = inf
        # the earliest begin and the latest end by one reduction
        moments = torch.tensor([-begin, end if takes_part else -inf], dtype=torch.float64)
        dist.all_reduce(moments, dist.ReduceOp.MAX)
        return float(moments[1] + moments[0])

    def _now(self) -> float:
        if self.member.device != "cpu":
            torch.cuda.synchronize()
        return clock.now() + self.offset
