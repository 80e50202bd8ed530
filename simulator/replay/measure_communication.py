"""Measurement of communication on real ranks: collectives back to back as in nccl-tests, messages as ping-pong.

A ping-pong is timed by the rank that begins it. A broadcast ends when the last rank has the vector, but its root may
continue before that. So barriers separate its iterations, and each is timed from the root's begin to the last rank's
end. In all other kinds no rank can begin the next iteration before it has its data of the last, and the time is that of
a batch over its iterations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from math import inf

import torch
import torch.distributed as dist

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.replay import clock
from clustersim.simulator.replay.communication import KINDS, LibraryCall
from clustersim.simulator.replay.measurements import SEND, Measurement, SizeSweep, of_batches
from clustersim.simulator.replay.rank_process import Member
from clustersim.simulator.replay.rendezvous import ELEMENT, MessageBuffers, elements, required_elements
from clustersim.simulator.schedule.ops import Collective


def measure(member: Member, sweep: SizeSweep) -> list[Measurement]:
    """Measure all of *sweep* as one of its ranks.

    Rank 0 returns the measurements, and reports each one after each visit, so that the last report of a case holds.
    """
    found: dict[int, Measurement] = {}
    times: defaultdict[int, list[float]] = defaultdict(list)
    timer = _Timer(member, sweep, clock.offset(member.rank, member.world_size), clock.now())
    for visit in range(sweep.visits):
        for number, one in enumerate(_all(member, sweep)):
            if visit and timer.over():
                break
            times[number] += timer.batches(one)
            found[number] = of_batches(one.kind, one.ranks, one.nbytes, times[number])
            if member.rank == 0:
                member.report(found[number])
    return list(found.values()) if member.rank == 0 else []


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


def _all(member: Member, sweep: SizeSweep) -> Iterator[_Timed]:
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
    call = LibraryCall(dist.group.WORLD, ranks, member.rank, 0, n, m, MessageBuffers(source, sink))
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
    """Times cases on all ranks together. *offset* (s) aligns this rank's clock with that of rank 0; *begun*: when."""

    member: Member
    sweep: SizeSweep
    offset: float
    begun: float

    def over(self) -> bool:
        """Return whether the time of the sweep is over on any rank, the same on every rank."""
        spent = torch.tensor([clock.now() - self.begun], dtype=torch.float64)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        return float(spent) > self.sweep.budget

    def batches(self, one: _Timed) -> list[float]:
        """Return the seconds of *one* in each batch of a visit, the same on every rank."""
        sweep = self.sweep
        warm = self._within(one, 1, max(1, sweep.warmup), sweep.share)
        iterations = max(1, min(sweep.iterations, int(sweep.share / sweep.batches / min(warm))))
        return [each / one.rounds for each in self._within(one, iterations, sweep.batches, sweep.share)]

    def _within(self, one: _Timed, iterations: int, most: int, enough: float) -> list[float]:
        """Seconds of an iteration in each of at most *most* batches, fewer if these have taken *enough* s."""
        times: list[float] = []
        spent, batches = 0.0, 0
        while batches < most and spent < enough:
            batch = self._batch(one, iterations)
            times += batch
            spent, batches = spent + sum(batch) * iterations / len(batch), batches + 1
        return times

    def _batch(self, one: _Timed, iterations: int) -> list[float]:
        """Seconds of each of *iterations*, or their mean if they cannot be told apart."""
        if one.apart:
            return [self._span(one, 1, from_root=True) for _ in range(iterations)]
        if one.kind == SEND:
            return self._echoes(one, iterations)
        return [self._span(one, iterations) / iterations]

    def _echoes(self, one: _Timed, iterations: int) -> list[float]:
        """Seconds of each ping-pong by the clock of the rank that begins it, the same on every rank."""
        times = torch.zeros(iterations, dtype=torch.float64)
        dist.all_reduce(torch.zeros(1))  # a barrier among hosts, for every backend
        for number in range(iterations if self.member.rank in one.ranks else 0):
            begin = self._now()
            one.once()
            times[number] = self._now() - begin
        if self.member.rank != one.ranks[0]:
            times.zero_()
        dist.all_reduce(times)
        return [float(time) for time in times]

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
