"""Lowering turns the segments of a layer into ops: computations, collectives, and messages around a ring.

The first and the last op of a layer in one action are computations, even if they have no kernels. So a pass can attach
a message before the first and behind the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.workloads.operators.by_coordinate import ShiftRecv, ShiftSend
from clustersim.workloads.operators.model import Layer
from clustersim.workloads.operators.operator import SHIFT, Exchange, Segment


@dataclass(frozen=True, slots=True)
class Overlap:
    """How the divisible exchanges over one axis run beside the product that they belong to.

    *share*: the part of them, 0 to 1, that runs beside it, both in pieces, as with Transformer Engine's user buffers.
    They begin together, and the next computation waits for both. *asynchronous*: if *share* is 0, the backward pass of
    a product cut by columns sums the gradient of its input, and gathers its input again, beside its own products
    (Megatron-LM, tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).
    """

    share: float = 0.0
    asynchronous: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ScheduleError(f"overlap = {self.share}: must be between 0 (nothing runs beside its product) and 1")


NO_OVERLAP = Overlap()


def lowered(action: Action, layer: Layer, micro_batch_size: int, overlap: Mapping[str, Overlap]) -> list[Op]:
    """The ops of *layer* in *action*; the last one is named ``<action>.<layer>``. *overlap*: by axis.

    Exchanges stand on the stream ``compute`` and block. Those that overlap have a stream named like their axis, and
    shifts have one for each direction.
    """
    phase = "F" if action.phase == "R" else action.phase
    return lowered_segments(action, layer.name, layer.segments(phase, micro_batch_size), overlap)


def lowered_segments(
    action: Action, layer: str, segments: Iterable[Segment], overlap: Mapping[str, Overlap]
) -> list[Op]:
    """The ops of *segments*, as `lowered` has them."""
    builder = _LayerOps(action, layer, overlap)
    segments = iter(segments)
    for segment in segments:
        # in a backward pass, only a product cut by columns ends with a divisible exchange; its weight gradient is next
        if action.phase == "B" and any(_asynchronous(exchange, overlap) for exchange in segment.after):
            builder.add_pair(segment, next(segments))
        else:
            builder.add(segment)
    return builder.finish()


def _asynchronous(exchange: Exchange, overlap: Mapping[str, Overlap]) -> bool:
    how = overlap.get(exchange.over, NO_OVERLAP)
    return exchange.divisible and how.asynchronous and not how.share


class _LayerOps:
    """Collects the ops of one layer in one action.

    *kernels* are not in an op yet. *last* names the last computation. The next computation waits for the exchanges
    *waits*, and frees *received* bytes of buffers at its end.
    """

    def __init__(self, action: Action, layer: str, overlap: Mapping[str, Overlap]) -> None:
        self.action, self.layer, self.overlap = action, layer, overlap
        self.ops: list[Op] = []
        self.kernels: tuple[Kernel, ...] = ()
        self.last = ""
        self.waits: tuple[str, ...] = ()
        self.received = 0.0

    def add(self, segment: Segment) -> None:
        """Add *segment* with its exchanges, each divided into a part that blocks and a part beside the kernels."""
        before, hidden_before = self._divided(segment.before)
        after, hidden_after = self._divided(segment.after)
        self._block(before)
        if segment.within:
            self._synchronise()
        beside = [*segment.within, *hidden_before, *hidden_after]
        if any(exchange.nbytes for exchange in beside):
            self._overlap(segment.kernels, beside)
        else:
            self.kernels += segment.kernels
        self._block(after)

    def add_pair(self, inputs: Segment, weights: Segment) -> None:
        """Add the gradients of a product's input and weights; the exchanges of each run beside the other.

        The first kernels wait for what is before them, and what is after the last ones waits for these only.
        """
        self._block(inputs.before)
        if weights.before and (self.kernels or not self.ops):
            self._compute()
        begun, before = (self.last, *self.waits), self.received
        gathers = self._exchange_beside(weights.before, begun)
        held, self.received = self.received - before, before
        self.kernels += inputs.kernels
        self._compute()
        self.received = held
        sums = self._exchange_beside(inputs.after, (self.last,))
        self.kernels, self.waits = weights.kernels, gathers
        self._compute()
        for exchange in weights.after:
            self._collective(exchange, "compute", ())
        self.waits = sums

    def finish(self) -> list[Op]:
        """All ops. The last one has the name of the layer."""
        self._compute("")
        return self.ops

    def _divided(self, exchanges: Iterable[Exchange]) -> tuple[list[Exchange], list[Exchange]]:
        """The parts of *exchanges* that block, and the parts that run beside the kernels."""
        blocking: list[Exchange] = []
        hidden: list[Exchange] = []
        for exchange in exchanges:
            share = self.overlap.get(exchange.over, NO_OVERLAP).share if exchange.divisible else 0.0
            blocking.append(exchange.times(1.0 - share) if share else exchange)
            if share:
                hidden.append(exchange.times(share))
        return blocking, hidden

    def _block(self, exchanges: Iterable[Exchange]) -> None:
        """Exchanges one after the other, with nothing beside them."""
        for exchange in exchanges:
            if exchange.kind == SHIFT and exchange.nbytes:
                self._synchronise()
                self.waits = self._exchange_beside([exchange], (self.last,))
            elif exchange.nbytes:
                if self.kernels or self.waits or not self.ops:
                    self._compute()
                self._collective(exchange, "compute", ())

    def _overlap(self, kernels: tuple[Kernel, ...], exchanges: Iterable[Exchange]) -> None:
        """*kernels* and *exchanges*, which begin together."""
        if self.kernels or not self.ops:
            self._compute()
        begun = (self.last, *self.waits)
        self.kernels = kernels
        self._compute()
        self.waits = self._exchange_beside(exchanges, begun)

    def _synchronise(self) -> None:
        """Make sure that the last op is a computation that has waited for all exchanges before it."""
        if self.kernels or self.waits or not self.ops or self.ops[-1].name != self.last:
            self._compute()

    def _compute(self, suffix: str | None = None) -> None:
        """Put the kernels, if any, into an op."""
        name = self._name(f".{len(self.ops)}" if suffix is None else suffix)
        frees = {"buffers": self.received} if self.received else {}
        self.ops.append(
            Compute(
                name=name, action=self.action, layer=self.layer, kernels=self.kernels, after=self.waits, frees=frees
            )
        )
        self.last, self.kernels, self.waits, self.received = name, (), (), 0.0

    def _exchange_beside(self, exchanges: Iterable[Exchange], after: tuple[str, ...]) -> tuple[str, ...]:
        """Issue *exchanges* on streams of their own, after the ops *after*. Return the names to wait for."""
        names: list[str] = []
        for exchange in exchanges:
            if exchange.kind == SHIFT and exchange.nbytes:
                names += self._shift(exchange, after)
            elif exchange.nbytes:
                names.append(self._collective(exchange, exchange.over, after))
        return tuple(names)

    def _collective(self, exchange: Exchange, stream: str, after: tuple[str, ...]) -> str:
        gathered = exchange.nbytes if exchange.kind == "all_gather" else 0.0
        op = Collective(
            name=self._name(f".{len(self.ops)} {exchange.kind}"),
            action=self.action,
            layer=self.layer,
            stream=stream,
            after=after,
            allocates={"buffers": gathered} if gathered else {},
            kind=exchange.kind,
            over=exchange.over,
            nbytes=exchange.nbytes,
            per_peer=exchange.per_peer,
            root=exchange.root,
        )
        self.ops.append(op)
        self.received += gathered
        return op.name

    def _shift(self, exchange: Exchange, after: tuple[str, ...]) -> Iterator[str]:
        """A send to one neighbour and a receive from the other, side by side; what arrives needs a buffer."""
        send = ShiftSend(
            name=self._name(f".{len(self.ops)} send"),
            action=self.action,
            layer=self.layer,
            stream=f"{exchange.over} to {exchange.distance:+d}",
            after=after,
            over=exchange.over,
            distance=exchange.distance,
            wraps=exchange.wraps,
            nbytes=exchange.nbytes,
        )
        receive = ShiftRecv(
            name=self._name(f".{len(self.ops)} receive"),
            action=self.action,
            layer=self.layer,
            stream=f"{exchange.over} from {-exchange.distance:+d}",
            after=after,
            allocates={"buffers": exchange.nbytes},
            over=exchange.over,
            distance=exchange.distance,
            wraps=exchange.wraps,
            nbytes=exchange.nbytes,
        )
        self.ops += (send, receive)
        self.received += exchange.nbytes
        return iter((send.name, receive.name))

    def _name(self, suffix: str) -> str:
        return f"{self.action}.{self.layer}{suffix}"
