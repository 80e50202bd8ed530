"""Tensor parallelism: the ranks of a group hold a share of every layer and exchange what its products need.

Each layer's computation is cut at the exchanges that its parts ask for; forward, backward and recomputation alike.
Shoeybi et al. 2019, "Megatron-LM" (arXiv:1909.08053); sequence parallelism as in Korthikanti et al. 2022
(arXiv:2205.05198).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from simulator.errors import ScheduleError
from simulator.kernel import BYTES, Kernel
from simulator.schedule import Collective, Compute, Op, Program, Schedule
from workloads.activations import with_activations
from workloads.model import Model
from workloads.optimizer import CHUNK
from workloads.passage import Exchange, Passage


def tensor_parallel(
    schedule: Schedule,
    model: Model,
    degree: int,
    *,
    micro_batch_size: int,
    sequence_parallel: bool = False,
    overlap: float = False,
    asynchronous: bool = False,
    gradient_dtype: str | None = None,
) -> Schedule:
    """*schedule* of *model*, each rank now *degree* ranks joined by the axis ``tp``, the slowest one.

    Exchanges stand on the compute stream and block. The part *overlap*, none to all, of those of a product runs beside
    it on the stream ``tp``, both in pieces, as with Transformer Engine's user buffers: they begin together, and what
    follows waits for both. *asynchronous*: where there is no such overlap, the backward pass of a product cut by
    columns sums the gradient of its input, and gathers its input again, beside its own products (Megatron-LM,
    tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).

    Under *sequence_parallel* the gradients of norms and biases, which each rank has for its own positions only, are
    all-reduced before the optimizer step, in *gradient_dtype* (unless given, the model's precision). Later passes take
    ``model.sharded(degree, sequence_parallel)``. Raises `ScheduleError` for an *overlap* outside 0 to 1,
    `ScenarioError` for a degree that does not divide.
    """
    if not 0 <= overlap <= 1:
        raise ScheduleError(f"overlap = {overlap}: must be between 0, nothing beside its product, and 1, all of it")
    spread = schedule.replicate("tp", degree)
    if degree == 1:
        return spread
    share = model.sharded(degree, sequence_parallel)
    dtype = gradient_dtype or model.precision
    cut = _Cut(model, share, micro_batch_size, overlap, asynchronous and not overlap)

    def of_one_rank(program: Program) -> Program:
        def change(op: Op) -> Iterator[Op]:
            if isinstance(op, Compute) and op.layer and op.action:
                yield from cut.pieces(op)
            elif isinstance(op, Compute) and op.action and op.action.phase == "O":
                covered = _layers(program, None if op.action.micro_batch is None else op.action.stage)
                yield from _partial_gradients(op, share, covered, dtype)
                yield _smaller_update(op, model.parameters_of(covered), share.parameters_of(covered))
            else:
                yield op

        own = _layers(program)
        part = share.parameters_of(own) / max(1, model.parameters_of(own))
        resident = {category: nbytes * part for category, nbytes in program.resident.items()}
        return with_activations(replace(program.map_ops(change), resident=resident), share, micro_batch_size)

    return spread.map_programs(of_one_rank)


def _layers(program: Program, stage: int | None = None) -> set[str]:
    """The layers that *program* computes, all or those of one *stage*."""
    ops = (op for op in program.distinct() if op.action and op.action.phase == "F")
    return {op.layer for op in ops if op.layer and op.action and stage in (None, op.action.stage)}


def _partial_gradients(update: Compute, share: Model, covered: Collection[str], dtype: str) -> Iterator[Collective]:
    """The all-reduce of what is the same on all ranks but summed over positions (Megatron-LM, finalize_model_grads)."""
    count = sum(layer.partial_parameters for layer in share.layers if layer.name in covered)
    if count:
        name, nbytes = f"{update.name}.partial gradients", float(count * BYTES[dtype])
        yield Collective(name=name, kind="all_reduce", over="tp", nbytes=nbytes)


def _smaller_update(op: Compute, whole: int, share: int) -> Compute:
    """The optimizer step *op* over *whole* parameters, over *share* of them."""

    def smaller(kernel: Kernel) -> Kernel:
        passes = kernel.launches // ceil(whole / CHUNK)
        return replace(kernel, nbytes=kernel.nbytes * share / whole, launches=passes * ceil(share / CHUNK))

    return replace(op, kernels=tuple(smaller(kernel) if kernel.nbytes else kernel for kernel in op.kernels))


class _Cut:
    """From the computation of a layer to that of its share, in pieces between exchanges."""

    def __init__(self, model: Model, share: Model, micro_batch_size: int, overlap: float, asynchronous: bool) -> None:
        self.whole = {layer.name: layer for layer in model.layers}
        self.share = {layer.name: layer for layer in share.layers}
        self.micro_batch_size, self.overlap, self.asynchronous = micro_batch_size, overlap, asynchronous
        self._rows: dict[tuple[str, str], Sequence[_Piece]] = {}

    def pieces(self, op: Compute) -> Sequence[Op]:
        """What takes the place of *op*; the last of them has its name, the first waits for what it waited for."""
        assert op.layer and op.action
        layer, phase, samples = self.share[op.layer], op.action.phase, self.micro_batch_size
        if phase == "R" and len(op.kernels) < len(self.whole[op.layer].forward(samples)):
            return (replace(op, kernels=layer.recomputable_forward(samples), allocates={}, frees={}),)
        key = op.layer, "F" if phase == "R" else phase
        if key not in self._rows:
            self._rows[key] = self._row(layer.passages(key[1], samples), key[1])
        return [piece.of(op, op.after if number == 0 else ()) for number, piece in enumerate(self._rows[key])]

    def _row(self, passages: Sequence[Passage], phase: str) -> Sequence[_Piece]:
        row, left = _Row(self.overlap), iter(passages)
        for passage in left:
            # of a backward pass only a product cut by columns ends with an exchange; its weight gradient is next
            if self.asynchronous and phase == "B" and passage.after:
                row.add_pair(passage, next(left))
            else:
                row.add(passage)
        return row.closed()


@dataclass(frozen=True, slots=True)
class _Piece:
    """An op to be, without its layer's name: *kernels* to compute, or else an *exchange*."""

    suffix: str
    kernels: tuple[Kernel, ...] = ()
    exchange: Exchange | None = None
    stream: str = "compute"
    after: tuple[str, ...] = ()
    allocates: Mapping[str, float] = field(default_factory=dict)
    frees: Mapping[str, float] = field(default_factory=dict)

    def of(self, op: Compute, after: tuple[str, ...]) -> Op:
        """This piece of *op*, waiting for *after* too."""
        common: dict[str, Any] = {
            "name": op.name + self.suffix,
            "action": op.action,
            "layer": op.layer,
            "stream": self.stream,
            "after": after + tuple(op.name + suffix for suffix in self.after),
            "allocates": self.allocates,
            "frees": self.frees,
        }
        if self.exchange is None:
            return Compute(kernels=self.kernels, on=op.on, **common)
        return Collective(kind=self.exchange.kind, over="tp", nbytes=self.exchange.nbytes, **common)


@dataclass
class _Row:
    """The pieces of a layer in one phase as they are laid; first and last are computations, be they empty.

    *kernels* are not yet in a piece, *last* is the last computation; the next one waits for the exchanges *waits* and
    at its end frees *gathered* bytes of buffers.
    """

    overlap: float
    pieces: list[_Piece] = field(default_factory=list)
    kernels: tuple[Kernel, ...] = ()
    last: str = ""
    waits: tuple[str, ...] = ()
    gathered: float = 0.0

    def add(self, passage: Passage) -> None:
        """Lay *passage*."""
        beside = [self._part(exchange, hidden=True) for exchange in passage.exchanges]
        self._blocking(self._part(exchange, hidden=False) for exchange in passage.before)
        if any(exchange.nbytes for exchange in beside):
            self._beside(passage.kernels, beside)
        else:
            self.kernels += passage.kernels
        self._blocking(self._part(exchange, hidden=False) for exchange in passage.after)

    def add_pair(self, inputs: Passage, weights: Passage) -> None:
        """Lay the gradients of a product's input and of its weights, with the exchanges of each beside the other."""
        if weights.before and (self.kernels or not self.pieces):
            self._compute()
        begun, before = (self.last, *self.waits), self.gathered
        gathers = tuple(self._communicate(exchange, "tp", begun) for exchange in weights.before)
        held, self.gathered = self.gathered - before, before
        self.kernels += inputs.kernels
        self._compute()
        self.gathered = held
        sums = tuple(self._communicate(exchange, "tp", (self.last,)) for exchange in inputs.after)
        self.kernels, self.waits = weights.kernels, gathers
        self._compute()
        self.waits = sums

    def closed(self) -> Sequence[_Piece]:
        """All pieces; the last has no name of its own."""
        self._compute("")
        return self.pieces

    def _part(self, exchange: Exchange, *, hidden: bool) -> Exchange:
        part = self.overlap if exchange.divisible else 0.0
        return replace(exchange, nbytes=exchange.nbytes * (part if hidden else 1.0 - part))

    def _blocking(self, exchanges: Iterable[Exchange]) -> None:
        for exchange in exchanges:
            if exchange.nbytes:
                if self.kernels or self.waits or not self.pieces:
                    self._compute()
                self._communicate(exchange)

    def _beside(self, kernels: tuple[Kernel, ...], exchanges: Sequence[Exchange]) -> None:
        if self.kernels or not self.pieces:
            self._compute()
        begun = (self.last, *self.waits)
        # a product waits for what came before it, not for what runs beside it
        self.kernels = kernels
        self._compute()
        self.waits = tuple(self._communicate(exchange, "tp", begun) for exchange in exchanges if exchange.nbytes)

    def _compute(self, suffix: str | None = None) -> None:
        """Put the kernels that there are, if any, into a piece."""
        self.last = f".{len(self.pieces)}" if suffix is None else suffix
        frees = {"buffers": self.gathered} if self.gathered else {}
        self.pieces.append(_Piece(self.last, self.kernels, after=self.waits, frees=frees))
        self.kernels, self.waits, self.gathered = (), (), 0.0

    def _communicate(self, exchange: Exchange, stream: str = "compute", after: tuple[str, ...] = ()) -> str:
        suffix = f".{len(self.pieces)} {exchange.kind}"
        gathered = exchange.nbytes if exchange.kind == "all_gather" else 0.0
        allocates = {"buffers": gathered} if gathered else {}
        self.pieces.append(_Piece(suffix, (), exchange, stream, after, allocates))
        self.gathered += gathered
        return suffix
