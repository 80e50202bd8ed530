"""A schedule says what every rank does: one program for each distinct role, and which rank runs which.

Semantics, whole: an op begins when it heads its stream and all of `after` have ended; a communication also waits for
its partners. A *stream* is an order of issue, nothing else. The n-th collective over an axis on a stream meets the
n-th of each member; a `Send` meets the `Recv` of the same axis, pair and action. A collective on the ``compute``
stream blocks; on any other stream it overlaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from simulator.errors import ScheduleError
from simulator.kernel import Kernel
from simulator.mesh import Mesh
from simulator.order import Action

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
)

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers")
"""Of memory. On the host the category stands with ``host.`` before it."""

_NOTHING: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """What is common to all ops.

    *action* and *layer* say where in the training step the op belongs, so that a later pass finds its place. *after*
    names ops of the same program that must have ended. *allocates* (at the op's begin) and *frees* (at its end) map a
    category of memory to bytes.
    """

    name: str
    action: Action | None = None
    layer: str | None = None
    stream: str = "compute"
    after: tuple[str, ...] = ()
    allocates: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    frees: Mapping[str, float] = field(default_factory=lambda: _NOTHING)

    def __str__(self) -> str:
        after = f" after {', '.join(self.after)}" if self.after else ""
        return f"{self.name}: {self._what()} [{self.stream}]{after}"

    def _what(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(Op):
    """*kernels*, one after the other, on the rank's GPU or on its host."""

    kernels: tuple[Kernel, ...]
    on: str = "gpu"

    def _what(self) -> str:
        return f"compute {len(self.kernels)} kernels" + (" on the host" if self.on == "host" else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Op):
    """*nbytes* to the rank at coordinate *peer* of the axis *over*."""

    over: str
    peer: int
    nbytes: float

    def _what(self) -> str:
        return f"send {self.nbytes:g} B to {self.over} {self.peer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recv(Op):
    """*nbytes* from the rank at coordinate *peer* of the axis *over*."""

    over: str
    peer: int
    nbytes: float

    def _what(self) -> str:
        return f"receive {self.nbytes:g} B from {self.over} {self.peer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Op):
    """*kind* (of `COLLECTIVES`) over the rank's group on the axis *over*.

    *nbytes* is the full vector, as nccl-tests counts it: what every rank holds after an all-gather, before a
    reduce-scatter; what the root holds of a gather or scatter; what each rank sends in all of an all-to-all. *root* is
    a coordinate on the axis. *algorithm* is fixed where the parallelism itself is (a parameter server is direct); else
    the network chooses.
    """

    kind: str
    over: str
    nbytes: float
    root: int = 0
    algorithm: str = "auto"

    def _what(self) -> str:
        return f"{self.kind} {self.nbytes:g} B over {self.over}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Op):
    """*nbytes* between GPU and host memory, *to* the ``host`` or the ``gpu``."""

    nbytes: float
    to: str

    def _what(self) -> str:
        return f"copy {self.nbytes:g} B to the {self.to}"


@dataclass(frozen=True, slots=True)
class Program:
    """What every rank of one *role* does: *ops* in order of issue, and the bytes *resident* all step, by category.

    *on* is where its ranks live: ``gpu``, or ``host`` (a parameter server).
    """

    role: str
    ops: tuple[Op, ...]
    resident: Mapping[str, float] = field(default_factory=dict)
    on: str = "gpu"

    def __str__(self) -> str:
        return self.printed()

    def printed(self, marked: int | None = None, around: int = 6) -> str:
        """One line per op, in order of issue; with *marked*, that op stands out among *around* lines on either side."""
        shown = range(len(self.ops))
        if marked is not None:
            shown = shown[max(0, marked - around) : marked + around + 1]
        lines = [f"{'>>' if i == marked else '  '} {self.ops[i]}" for i in shown]
        before, after = shown.start, len(self.ops) - shown.stop
        head = [f"program {self.role}"] + ([f"   ... {before} ops before"] if before else [])
        return "\n".join([*head, *lines, *([f"   ... {after} ops after"] if after else [])])

    def streams(self) -> dict[str, list[Op]]:
        """The ops of each stream in order of issue, streams in order of first use."""
        streams: dict[str, list[Op]] = {}
        for op in self.ops:
            streams.setdefault(op.stream, []).append(op)
        return streams

    def weave(self, change: Callable[[Op], Iterable[Op]]) -> Program:
        """The program in which every op gives way to what *change* makes of it.

        What replaces an op leaves the op's name on its last part, so that no `after` need be touched.
        """
        return replace(self, ops=tuple(new for op in self.ops for new in change(op)))


@dataclass(frozen=True, slots=True)
class Schedule:
    """*programs*, and for each rank of the *mesh* the index of the one it runs; repeated *steps* times.

    *batches*: how many global batches one run of the programs spans; more than one where the optimizer steps of an
    asynchronous order stand between them, which never drains.
    """

    mesh: Mesh
    programs: tuple[Program, ...]
    program_of: tuple[int, ...]
    steps: int = 1
    batches: int = 1

    def __post_init__(self) -> None:
        if len(self.program_of) != self.mesh.world_size:
            raise ScheduleError(
                f"program_of names {len(self.program_of)} ranks, but the mesh has {self.mesh.world_size}"
            )

    def program(self, rank: int) -> Program:
        """The program that *rank* runs."""
        return self.programs[self.program_of[rank]]

    def weave(self, change: Callable[[Program], Program]) -> Schedule:
        """The schedule whose every program gives way to what *change* makes of it."""
        return replace(self, programs=tuple(change(program) for program in self.programs))

    def replicate(self, axis: str, size: int) -> Schedule:
        """*size* copies of all ranks, joined by a new, slowest *axis*."""
        return replace(self, mesh=self.mesh.replicated(axis, size), program_of=self.program_of * size)

    def arranged(self, *axes: str) -> Schedule:
        """The same schedule with its ranks numbered along *axes*, fastest first; ranks on none of them stay last.

        Raises `ScheduleError` unless *axes* tell all ranks on them apart.
        """
        chosen = [self.mesh.axes[name] for name in axes]
        places = [[axis.place(rank) for axis in reversed(chosen)] for rank in range(self.mesh.world_size)]
        if len({tuple(p[1] for p in place if p) for place in places if any(place)}) != sum(map(any, places)):
            raise ScheduleError(f"axes {', '.join(axes)} do not tell all ranks apart")

        def position(rank: int) -> tuple[bool, list[int], int]:
            on_axes = any(places[rank])
            return not on_axes, [p[1] if p else -1 for p in places[rank]] if on_axes else [], rank

        sequence = sorted(range(self.mesh.world_size), key=position)
        number_of = [0] * len(sequence)
        for number, rank in enumerate(sequence):
            number_of[rank] = number
        return replace(
            self,
            mesh=self.mesh.relabelled(number_of),
            program_of=tuple(self.program_of[rank] for rank in sequence),
        )

    def ops(self) -> Iterator[tuple[Program, Op]]:
        """Every op of every program once, however many ranks run it."""
        return ((program, op) for program in self.programs for op in program.ops)

    def ranks_of(self, program: int) -> Sequence[int]:
        """The ranks that run the program of that index, ascending."""
        return [rank for rank, index in enumerate(self.program_of) if index == program]

    def check(self) -> None:
        """Hold the schedule against its laws (`simulator.laws`); raises `ScheduleError` showing the offending op."""
        from simulator.laws import check

        check(self)
