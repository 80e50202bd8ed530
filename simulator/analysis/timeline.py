"""A timeline: a span for every op of every rank, and the traffic of every link.

Spans are columns (arrays), stored once for each class of equal ranks. Simulation and replay both make timelines; only
those of a simulation have links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import representatives_of
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule

if TYPE_CHECKING:
    import pandas

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

NO_COMMUNICATION = -1
"""Stands for the number of a communication of an op that is none."""


class Span(NamedTuple):
    """An *op* of *rank* in training step *step*: at the head of its stream from *ready*, running from *begin* to *end*.

    From ready to begin it waited for its partners. Times are seconds since the start of the simulation.
    """

    rank: int
    op: Op
    step: int
    ready: float
    begin: float
    end: float


class Columns(NamedTuple):
    """The spans of one rank as arrays of one length.

    *op* is the index in the rank's program, *step* the training step; *ready*, *begin*, *end* are in seconds.
    *communication*: the number of the communication of the op, common to the spans of its partners;
    `NO_COMMUNICATION` for a computation. Within a stream, spans are in order of execution.
    """

    op: Integers
    step: Integers
    ready: Floats
    begin: Floats
    end: Floats
    communication: Integers

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, float, float, float]]) -> Columns:
        """Return columns of *rows*, each (op, step, ready, begin, end), by end, without numbers of communications.

        >>> Columns.of([(1, 0, 2.0, 2.0, 5.0), (0, 0, 0.0, 1.0, 2.0)]).op.tolist()
        [0, 1]
        """
        fields = list(zip(*sorted(rows, key=lambda row: row[4]), strict=True)) or [()] * 5
        op, step = (np.array(column, np.int64) for column in fields[:2])
        ready, begin, end = (np.array(column, np.float64) for column in fields[2:])
        return cls(op, step, ready, begin, end, np.full(len(op), NO_COMMUNICATION))


class RateIntervals(NamedTuple):
    """Arrays of one length: the transfers of *flow* each ran at *rate* (bytes/s) from *begin* to *end* (s)."""

    flow: Integers
    begin: Floats
    end: Floats
    rate: Floats


class FlowLinks(NamedTuple):
    """The links under each flow: flow *i* crosses ``links[starts[i]:starts[i + 1]]``, each *crossings* times."""

    starts: Integers
    links: Integers
    crossings: Floats


class LinkUse(NamedTuple):
    """Use of the links over time: the *intervals* of constant rate of flows, and the links that each flow crosses."""

    intervals: RateIntervals
    flows: FlowLinks


class LinkBins(NamedTuple):
    """Use of the links over time: *share* of the bandwidth, the mean over all links of a kind.

    *share* has the shape ``(kinds, bins)``; *edges*, of shape ``(bins + 1,)``, are in s.
    """

    edges: Floats
    kinds: tuple[str, ...]
    share: Floats


@dataclass(frozen=True)
class Totals:
    """What is known of a run too large to keep every span, by representative, in the order of *ranks*.

    *seconds*, of shape ``(ranks, parts)``: time from *window_begin* to *makespan* (s) by part of the breakdown.
    *peak_bytes* and *peak_time*, of shape ``(ranks,)``, and *peak_by_category*, of shape ``(ranks, categories)``: the
    most that a rank holds in the memory of its GPU. *host_peak_bytes*: the most that a server holds in its host's.
    """

    makespan: float
    window_begin: float
    ranks: Integers
    parts: tuple[str, ...]
    seconds: Floats
    peak_bytes: Floats
    peak_time: Floats
    peak_by_category: Floats
    host_peak_bytes: float
    link_bins: LinkBins


@dataclass(frozen=True, repr=False)
class Timeline:
    """What ran, by rank.

    *columns* holds the spans of each representative, and *representative*, of shape ``(ranks,)``, the rank whose
    columns are those of a rank. *axis_bytes*: bytes sent by all ranks together, by family of axis. *link_bytes*: bytes
    carried by a link of *cluster*, by its number; *multiplicity*: how many equal links that link represents (one,
    unless named). *link_use*: use of links over time. *algorithms*: (axis family, kind, bytes) of a collective to the
    algorithm and protocol that ran it. *engine*: the name of the engine that made it. *totals* stand in for the spans
    of a run that is too large to keep all of them: then *columns* has only those of some ranks. *links_shared*: false
    if each transfer had all of its links for itself, so that a link may carry more than its bandwidth.
    """

    schedule: Schedule
    cluster: Cluster | None
    columns: Mapping[int, Columns]
    representative: Integers
    devices: Sequence[str] = ()
    axis_bytes: Mapping[str, float] = field(default_factory=dict)
    link_bytes: Mapping[int, float] = field(default_factory=dict)
    link_use: LinkUse | None = None
    algorithms: Mapping[tuple[str, str, float], tuple[str, str]] = field(default_factory=dict)
    multiplicity: Mapping[int, int] = field(default_factory=dict)
    engine: str = ""
    totals: Totals | None = None
    links_shared: bool = True

    def __repr__(self) -> str:
        return f"<Timeline of {self.world_size:,} ranks, {self.makespan:.4g} s>"

    @classmethod
    def unfolded(
        cls, schedule: Schedule, columns: Sequence[Columns], cluster: Cluster | None = None, **fields: Any
    ) -> Timeline:
        """Return the timeline in which each rank has its own *columns*, given in the order of the ranks."""
        return cls(schedule, cluster, dict(enumerate(columns)), np.arange(len(columns)), **fields)

    def of(self, rank: int) -> Columns:
        """Return the columns of *rank*. Raises `SimulatorError` if its spans were not kept."""
        representative = int(self.representative[rank])
        if representative not in self.columns:
            kept = ", ".join(map(str, sorted(self.columns)[:8]))
            raise SimulatorError(
                f"the spans of rank {rank} were not kept: this run is too large to keep all. Kept are those of "
                f"{kept}{' ...' if len(self.columns) > 8 else ''}; name others with --ranks"
            )
        return self.columns[representative]

    def spans(self, rank: int) -> Iterator[Span]:
        """Yield the spans of *rank* as objects; use `of` for many."""
        ops = self.schedule.program(rank).ops
        own = self.of(rank)
        rows = zip(*(column.tolist() for column in own[:5]), strict=True)
        return (Span(rank, ops[op], step, ready, begin, end) for op, step, ready, begin, end in rows)

    @property
    def world_size(self) -> int:
        """The number of ranks, hosts included."""
        return self.schedule.mesh.world_size

    @cached_property
    def on_gpu(self) -> npt.NDArray[np.bool_]:
        """By rank: True on a GPU."""
        of_programs = np.array([program.on == "gpu" for program in self.schedule.programs])
        return np.asarray(of_programs[self.schedule.program_numbers])

    @cached_property
    def gpu_ranks(self) -> Sequence[int]:
        """The ranks on GPUs, ascending."""
        return range(self.world_size) if self.on_gpu.all() else tuple(np.flatnonzero(self.on_gpu).tolist())

    @cached_property
    def classes(self) -> Mapping[int, Integers]:
        """The ranks, ascending, of each representative with kept spans, itself included."""
        order = np.argsort(self.representative, kind="stable")
        firsts, starts = np.unique(self.representative[order], return_index=True)
        groups = zip(firsts.tolist(), np.split(order, starts[1:]), strict=True)
        return {first: ranks for first, ranks in groups if first in self.columns}

    @property
    def distinct_ranks(self) -> tuple[int, ...]:
        """The representatives, ascending, whether or not their spans were kept."""
        return tuple(representatives_of(self.representative).tolist())

    @cached_property
    def makespan(self) -> float:
        """The end of the last op, s."""
        if self.totals is not None:
            return self.totals.makespan
        return max((float(own.end.max()) for own in self.columns.values() if len(own.end)), default=0.0)

    @cached_property
    def window(self) -> tuple[float, float]:
        """The interval of time of metrics: a single step as a whole; of several steps, those after the first.

        Staggered steps: from the end of the first step on the rank that ends first to that of the last step. An
        asynchronous order: its steady state, that is whole global batches, from the end of the last batch that fills
        the pipeline to the end of the last batch before the pipeline drains, or to the end of the run if none drains
        it. A global batch ends with its last optimizer step on stage 0. Independent ranks: whole
        batches of the slowest, from the last one that fills on, until the first rank has ended its last batch.
        """
        if self.schedule.independent:
            return self._common_window
        if self.schedule.batches > 1:
            draining = self.schedule.draining
            end = self._batch_end(self.schedule.batches - draining) if draining else self.makespan
            return self._batch_end(self.schedule.filling), end
        if self.schedule.steps == 1:
            return 0.0, self.makespan
        if self.schedule.staggered:
            return self._first_end(0), self._first_end(self.schedule.steps - 1)
        if self.totals is not None:
            return self.totals.window_begin, self.makespan
        first = max((float(own.end[own.step == 0].max(initial=0.0)) for own in self.columns.values()), default=0.0)
        return first, self.makespan

    @property
    def _common_window(self) -> tuple[float, float]:
        """Whole steps of the rank that is last to fill, as long as no rank has ended its last batch."""
        filled = self.schedule.filling - 1
        slowest = max(self._batch_ends.values(), key=lambda ends: float(ends[filled]))
        first_end = min(float(ends[-1]) for ends in self._batch_ends.values())
        within = slowest[slowest <= first_end]
        if len(within) <= filled + 1:
            raise SimulatorError(
                "the fastest rank ends its last step before the slowest ends its second; take more training.steps"
            )
        return float(within[filled]), float(within[-1])

    @cached_property
    def _batch_ends(self) -> Mapping[int, Floats]:
        """When each global batch ended its last optimizer step, by GPU rank with columns."""
        found = {}
        for rank in set(self.columns) & set(self.gpu_ranks):
            own = self.of(rank)
            updates = self.schedule.program(rank).column(_is_update, np.bool_)
            ends = np.sort(own.end[updates[own.op]])
            found[rank] = ends.reshape(self.schedule.batches, -1)[:, -1]
        return found

    def _first_end(self, step: int) -> float:
        """When the first GPU rank ended the computation of the training step of that number."""
        ends = []
        for rank in set(self.columns) & set(self.gpu_ranks):
            own = self.of(rank)
            computes = self.schedule.program(rank).column(lambda op: isinstance(op, Compute), np.bool_)
            ends.append(float(own.end[computes[own.op] & (own.step == step)].max(initial=0.0)))
        return min(ends, default=0.0)

    @cached_property
    def _updates(self) -> list[float]:
        """The ends of the optimizer steps of stage 0, ascending, on the first rank that has them."""
        for rank in self.gpu_ranks:
            program = self.schedule.program(rank)
            steps = program.column(_updates_first_stage, np.bool_)
            if steps.any():
                own = self.of(rank)
                return sorted(own.end[steps[own.op]].tolist())
        raise SimulatorError("an asynchronous order needs optimizer steps on stage 0; the schedule has none")

    def _batch_end(self, batches: int) -> float:
        """When the last optimizer step of the first *batches* global batches ended on stage 0."""
        if not batches:
            return 0.0
        each = len(self._updates) // self.schedule.batches
        return self._updates[batches * each - 1]

    @property
    def steps_run(self) -> int:
        """The number of training steps (global batches) that were run."""
        return self.schedule.steps * self.schedule.batches

    @property
    def steps_measured(self) -> float:
        """The number of training steps in the window; of independent ranks the mean."""
        if self.schedule.independent:
            numbers = np.arange(1, self.schedule.batches + 1)
            done = [np.diff(np.interp(self.window, ends, numbers))[0] for ends in self._batch_ends.values()]
            return float(np.average(done, weights=[len(self.classes[rank]) for rank in self._batch_ends]))
        if self.schedule.batches > 1:
            return self.schedule.batches - self.schedule.filling - self.schedule.draining
        return max(1, self.schedule.steps - 1)

    @property
    def step_time(self) -> float:
        """Seconds per training step: the mean over the window."""
        begin, end = self.window
        return (end - begin) / self.steps_measured

    @cached_property
    def ops(self) -> int:
        """The number of spans of all ranks and steps."""
        lengths = np.array([len(program.ops) for program in self.schedule.programs])
        return int(lengths[self.schedule.program_numbers].sum()) * self.schedule.steps

    def to_frame(self) -> pandas.DataFrame:
        """Return the spans of all representatives as a pandas DataFrame, one row each, times in s.

        Columns: *rank*, *ranks* (the number that it represents), those of `Columns` with the name as *op*, and
        *stream*. Raises `SimulatorError` if pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise SimulatorError("to_frame() needs pandas, which is not installed: pip install pandas") from None
        return pandas.DataFrame(self.table())

    def table(self) -> dict[str, npt.NDArray[Any]]:
        """Return the content of `to_frame` as arrays of one length by name; names are arrays of Python strings."""
        programs = {self.schedule.program_of[rank] for rank in self.columns}
        named = {number: self.schedule.programs[number] for number in programs}
        names = {number: np.array(op_names(program), object) for number, program in named.items()}
        streams = {number: op_streams(program) for number, program in named.items()}
        parts = []
        for rank, ranks in self.classes.items():
            own, number = self.columns[rank], self.schedule.program_of[rank]
            of_all = (np.full(len(own.op), rank), np.full(len(own.op), len(ranks)))
            parts.append((*of_all, own.step, names[number][own.op], streams[number][own.op], *own[2:]))
        columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        return dict(zip(TABLE, columns, strict=True))


def _is_update(op: Op) -> bool:
    """True if *op* computes an optimizer step."""
    return isinstance(op, Compute) and op.action is not None and op.action.phase == "O"


def _updates_first_stage(op: Op) -> bool:
    """True if *op* computes an optimizer step of stage 0."""
    return _is_update(op) and op.action is not None and op.action.stage == 0


TABLE = ("rank", "ranks", "step", "op", "stream", "ready_s", "begin_s", "end_s", "communication")
"""The columns of `Timeline.table`."""


NO_MICRO_BATCH = -1
"""Stands for the number of the micro-batch of an op without one."""


def op_names(program: Program) -> list[str]:
    """Return the names of the ops of *program*, by index."""
    names: dict[int, list[str]] = {}
    for block in program.blocks:
        if id(block.ops) not in names:
            names[id(block.ops)] = [op.name for op in block.ops]
    return list(chain.from_iterable(block.names(names[id(block.ops)]) for block in program.blocks))


def micro_batches(program: Program) -> Integers:
    """Return the micro-batch of the action of each op of *program*, by index; `NO_MICRO_BATCH` if it has none."""
    own = program.column(_micro_batch, np.int64)
    of_block = [NO_MICRO_BATCH if block.micro_batch is None else block.micro_batch for block in program.blocks]
    filled_in = np.repeat(np.array(of_block, np.int64), [len(block.ops) for block in program.blocks])
    return np.where(own == _OF_ITS_BLOCK, filled_in, own)


_OF_ITS_BLOCK = NO_MICRO_BATCH - 1


def _micro_batch(op: Op) -> int:
    """Return the micro-batch of the action of *op*, of a template; `_OF_ITS_BLOCK` for a placeholder."""
    if op.action is None or op.action.micro_batch is None:
        return NO_MICRO_BATCH
    return op.action.micro_batch if op.action.micro_batch >= 0 else _OF_ITS_BLOCK


def op_streams(program: Program) -> npt.NDArray[Any]:
    """Return the names of the streams of the ops of *program*, by index, as an array of Python strings."""
    number: dict[str, int] = {}
    numbers = program.column(lambda op: number.setdefault(op.stream, len(number)), np.int64)
    streams: npt.NDArray[Any] = np.array(list(number), object)[numbers]
    return streams
