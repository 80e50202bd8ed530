"""A timeline is what happened, and when: a span for every op of every rank, and what the links carried.

Every metric is a fold over spans. Simulation and replay both make timelines; only simulation knows the links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from simulator.cluster import Cluster
from simulator.schedule import Op, Schedule


class Span(NamedTuple):
    """*rank* had *op* (of training step *step*) at the head of its stream from *ready*, and worked *begin* to *end*.

    Between ready and begin it waited for its partners. Seconds since the simulation's start.
    """

    rank: int
    op: Op
    step: int
    ready: float
    begin: float
    end: float


class Record(NamedTuple):
    """A span as the engine writes it: the op by its index in the rank's program."""

    op: int
    step: int
    ready: float
    begin: float
    end: float


class Columns(NamedTuple):
    """Records as columns: arrays of one length."""

    op: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    ready: npt.NDArray[np.float64]
    begin: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]


class Records(Sequence[Record]):
    """*count* records, which *make* writes down when they are first read."""

    def __init__(self, count: int, make: Callable[[], Columns]) -> None:
        self._count, self._make = count, make

    @cached_property
    def columns(self) -> Columns:
        """All of them."""
        return self._make()

    @cached_property
    def _all(self) -> tuple[Record, ...]:
        return tuple(map(Record, *(column.tolist() for column in self.columns)))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, index: int | slice) -> Record | tuple[Record, ...]:
        return self._all[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._all)


def columns(records: Sequence[Record]) -> Columns:
    """*records* as columns."""
    if isinstance(records, Records):
        return records.columns
    flat = np.fromiter(chain.from_iterable(records), np.float64, count=5 * len(records)).reshape(-1, 5).T
    return Columns(flat[0].astype(np.int64), flat[1].astype(np.int64), *flat[2:])


class Use(NamedTuple):
    """What one transfer, or one coupled set of them, laid on the links from *begin* to *end*.

    *links* maps the number of a link to the bytes/s that it carried.
    """

    begin: float
    end: float
    links: Mapping[int, float]


@dataclass(frozen=True)
class Timeline:
    """*records* by rank, in order of their ends within a stream.

    *axis_bytes*: what all ranks together sent, by family of axis. *link_bytes*: what each link of *cluster* carried,
    by its number, and *alike* how many links that link stands for (one, unless named). *uses*: link use over time.
    *algorithms*: (axis family, kind, bytes) of a collective to the algorithm and protocol that ran it.
    *representatives*: how many ranks were simulated, each for all that are equal to it.
    """

    schedule: Schedule
    cluster: Cluster | None
    records: Sequence[Sequence[Record]]
    devices: Sequence[str] = ()
    axis_bytes: Mapping[str, float] = field(default_factory=dict)
    link_bytes: Mapping[int, float] = field(default_factory=dict)
    uses: Sequence[Use] = ()
    algorithms: Mapping[tuple[str, str, float], tuple[str, str]] = field(default_factory=dict)
    representatives: int = 0
    alike: Mapping[int, int] = field(default_factory=dict)

    def spans(self, rank: int) -> Iterator[Span]:
        """The spans of *rank* in order of record."""
        ops = self.schedule.program(rank).ops
        return (Span(rank, ops[r.op], r.step, r.ready, r.begin, r.end) for r in self.records[rank])

    @property
    def world_size(self) -> int:
        """The number of ranks, hosts included."""
        return self.schedule.mesh.world_size

    @cached_property
    def gpu_ranks(self) -> tuple[int, ...]:
        """The ranks that live on GPUs, ascending."""
        return tuple(rank for rank in range(self.world_size) if self.schedule.program(rank).on == "gpu")

    @cached_property
    def distinct_ranks(self) -> tuple[int, ...]:
        """The first of all ranks that are equal, ascending: those that share their records."""
        first: dict[int, int] = {}
        for rank, records in enumerate(self.records):
            first.setdefault(id(records), rank)
        return tuple(first.values())

    @cached_property
    def makespan(self) -> float:
        """When the last op ended, s."""
        return max((float(columns(records).end.max()) for records in self._distinct), default=0.0)

    @cached_property
    def _distinct(self) -> Sequence[Sequence[Record]]:
        """The records, those that ranks share but once."""
        return [self.records[rank] for rank in self.distinct_ranks if len(self.records[rank])]

    @cached_property
    def window(self) -> tuple[float, float]:
        """Where metrics are taken: the whole of a single step; of several, what comes after the first has ended.

        Of an asynchronous order, from the optimizer step with which the first global batch ends to the last one.
        """
        if self.schedule.batches > 1:
            return self._updates[self._warm_up - 1], self._updates[-1]
        if self.schedule.steps == 1:
            return 0.0, self.makespan
        written = (columns(records) for records in self._distinct)
        first = max((float(one.end[one.step == 0].max(initial=0.0)) for one in written), default=0.0)
        return first, self.makespan

    @cached_property
    def _updates(self) -> list[float]:
        """When the optimizer steps of stage 0 ended, ascending: those of the first rank that has them."""
        for rank in self.gpu_ranks:
            steps = self.schedule.program(rank).per_op(lambda op: op.action is not None and op.action[:2] == ("O", 0))
            if any(steps):
                written = columns(self.records[rank])
                return sorted(written.end[np.array(steps)[written.op]].tolist())
        return []

    @property
    def _warm_up(self) -> int:
        return len(self._updates) // (self.schedule.steps * self.schedule.batches)

    @property
    def steps_run(self) -> int:
        """How many training steps, global batches, were run in all."""
        return self.schedule.steps * self.schedule.batches

    @property
    def steps_measured(self) -> int:
        """How many of them lie in the window."""
        return max(1, self.steps_run - 1)

    @property
    def step_time(self) -> float:
        """Seconds per training step; of several steps the mean interval after the first, which warms up."""
        begin, end = self.window
        return (end - begin) / self.steps_measured

    @property
    def ops(self) -> int:
        """How many spans there are, all ranks and steps."""
        return sum(map(len, self.records))
