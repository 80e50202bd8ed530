"""The feed-forward block of a layer with experts: router, dispatch, experts, combine, and the shared expert.

Forward: the router chooses; tokens are permuted into the order of experts, dispatched, sorted by expert, multiplied,
sorted back, sent back, and summed up. Backward: the gradient goes the same way back. The order, and what is kept, are
those of Megatron-LM (core/transformer/moe/moe_layer.py, token_dispatcher.py, experts.py,
``activation_func_with_probs``: weights multiply the activation, so that results are not kept for their gradient).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.elementwise import Elementwise, RecomputedActivation
from clustersim.workloads.operators.expert_routing import (
    FP8_BYTES,
    Dispatch,
    Router,
    cast_to_fp8,
    permuted,
    unpermuted,
    unpermuted_backward,
)
from clustersim.workloads.operators.experts import Experts
from clustersim.workloads.operators.grouped_linear import GroupedLinear
from clustersim.workloads.operators.operator import Exchange, Operator, ParameterTensor, Segment

ROUTING = Operation("routing and copies", "elementwise", "experts")


@dataclass(frozen=True)
class Mixture(Operator):
    """*experts* on *rows* tokens a sample of *hidden* features, as one rank has them.

    *up*, *down*: the products of its experts; *between*: the activation, for one row. *shared*: the operators of the
    shared expert, the first half and the second. *number*: which of the layers with experts it is.
    *router_parameters*: the tensors of the router, with the axes that reduce them. *sequence_cut*: the ranks of a
    tensor-parallel group have different tokens. *summed*: else these ranks add up their outputs, over that axis.
    *fused*: the sum of results is one kernel. *sent_cast*: products take tokens and gradients as they are sent, cast.
    *kept_fp8*: what experts keep is kept in 8 bits.
    """

    experts: Experts
    rows: int
    hidden: int
    router: Router
    router_parameters: tuple[ParameterTensor, ...]
    up: GroupedLinear
    between: Elementwise
    down: GroupedLinear
    shared: tuple[tuple[Operator, ...], tuple[Operator, ...]] = ((), ())
    number: int = 0
    sequence_cut: bool = False
    summed: str = ""
    precision: str = "fp32"
    fused: bool = True
    sent_cast: bool = False
    kept_fp8: bool = False

    @property
    def operation(self) -> Operation:
        """Beside products and activations, tokens are routed, copied and summed."""
        return ROUTING

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Those of the router, of the experts and of the shared expert."""
        shared = (tensor for operator in chain(*self.shared) for tensor in operator.tensors)
        return (*self.router_parameters, *self.up.tensors, *self.down.tensors, *shared)

    @property
    def active_parameters(self) -> int:
        """Those that one token uses."""
        every = sum(tensor.count for tensor in self.tensors)
        own = sum(tensor.count for tensor in (*self.up.tensors, *self.down.tensors))
        return every - own + own * self.experts.topk // self.experts.local

    def dispatch(self, samples: int) -> Dispatch:
        """The exchanges for *samples*."""
        rows = float(samples * self.rows)
        width = float(self.hidden * BYTES[self.precision])
        sent = self.hidden * FP8_BYTES if self.experts.cut.sent_fp8 else width
        return Dispatch(self.experts, self.experts.tokens(self.number, rows), rows, sent, width, self.sequence_cut)

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """All kernels, in order."""
        return tuple(kernel for segment in self.segments("F", samples) for kernel in segment.kernels)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """All kernels, in order."""
        return tuple(kernel for segment in self.segments("I", samples) for kernel in segment.kernels)

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """The products of all weights."""
        tokens = self.dispatch(samples).arriving
        products = (*self.down.backward_weights(tokens), *self.up.backward_weights(tokens))
        shared = _kernels(_of(self._shared(False), "W", samples))
        again = () if self.down.frozen else self.between.backward_weights(round(sum(tokens)))
        return (*again, *products, *self.router.linear.backward_weights(samples), *shared)

    def kept_bytes(self, samples: int) -> float:
        """The input, what the router keeps, and the inputs of the products and of the activation."""
        width, dispatch = BYTES[self.precision], self.dispatch(samples)
        tokens = dispatch.arriving
        taken = 0 if self.up.frozen else samples * self.rows
        inputs = taken * self.hidden * width
        products = self.up.kept_bytes(tokens) + (0.0 if self._recomputes else self.down.kept_bytes(tokens))
        inside = self._narrowed(products + sum(tokens) * self.between.kept * self.between.elements, tokens)
        shared = sum(operator.kept_bytes(samples) for operator in chain(*self.shared))
        return inputs + inside + self.router.kept_bytes(samples) + max(0.0, shared - self._shared_input(samples))

    def weight_bytes(self, samples: int) -> float:
        """The inputs of all products, or what makes them again, and the gradients of their outputs."""
        if self.up.frozen:
            return sum(operator.weight_bytes(samples) for operator in chain(*self.shared))
        width, tokens = BYTES[self.precision], self.dispatch(samples).arriving
        products = self.up.weight_bytes(tokens) + self.down.weight_bytes(tokens)
        if self._recomputes:
            products += sum(tokens) * self.between.kept * self.between.elements - self.down.kept_bytes(tokens)
        routed = samples * self.rows * (self.hidden * width + self.router.experts * 4.0)
        shared = sum(operator.weight_bytes(samples) for operator in chain(*self.shared))
        return products + routed + max(0.0, shared - self._shared_input(samples))

    def _narrowed(self, nbytes: float, tokens: tuple[float, ...]) -> float:
        """*nbytes*, or those of the same elements in 8 bits, where experts keep these; what is in 8 bits stays."""
        if not self.kept_fp8:
            return nbytes
        narrow = FP8_BYTES / BYTES[self.precision]
        products = (self.up, self.down) if not self._recomputes else (self.up,)
        wide = [one for one in products if one.keeps_wide_input]
        kept = sum(one.kept_bytes(tokens) for one in wide) + sum(tokens) * self.between.kept * self.between.elements
        return nbytes - (1.0 - narrow) * kept

    def _narrowing(self, rows: float) -> tuple[Kernel, ...]:
        """The cast of what the activation keeps to 8 bits, or back."""
        elements = self.between.kept * self.between.elements / BYTES[self.precision]
        return (cast_to_fp8(rows, elements, self.precision),) if self.kept_fp8 and rows else ()

    @property
    def _recomputes(self) -> bool:
        return isinstance(self.between, RecomputedActivation)

    def transient_bytes(self, phase: str, samples: int) -> float:
        """The permuted tokens, and those that arrive, while they are exchanged."""
        dispatch = self.dispatch(samples)
        exchanged = (sum(dispatch.tokens) + sum(dispatch.arriving)) * self.hidden * BYTES[self.precision]
        return max(exchanged, self.between.transient_bytes(phase, round(sum(dispatch.arriving))))

    def segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        """The parts in order, each with its exchanges."""
        if phase == "W":
            beside = [s for s in _of(self._shared(False), "W", samples) if s.exchanges]
            if not beside:
                return (Segment(self.backward_weights(samples)),)
            own = replace(self, shared=((), ())).backward_weights(samples)
            return (*_of(self._shared(False), "W", samples), Segment(own))
        return tuple(self._forward(samples) if phase == "F" else self._backward(samples))

    def _forward(self, samples: int) -> Iterator[Segment]:
        there, back = self.dispatch(samples).there(), self.dispatch(samples).back()
        first, second = self._beside("F", samples)
        counts = self.dispatch(samples).counts()
        yield Segment((*self.router.forward(samples), *self._counted(samples)), after=counts)
        yield from _exchanged((*self._cast(samples), *self._permuted(samples, there=True)), there, first)
        yield self._experts(samples, "F")
        yield from _exchanged((), back, second)
        added = (self._sum(samples),) if any(self.shared) else ()
        partial = samples * self.rows * self.hidden * float(BYTES[self.precision])
        after = (Exchange("all_reduce", partial, self.summed),) if self.summed else ()
        summed = unpermuted(*self._copied(samples), self.precision, fused=self.fused)
        yield Segment((*summed, *added), after=after)
        if self.experts.cut.overlap != "shared_experts":
            yield from _of(self._shared(False), "F", samples)

    def _backward(self, samples: int) -> Iterator[Segment]:
        there, back = self.dispatch(samples).there(), self.dispatch(samples).back()
        second, first = self._beside("I", samples)
        if self.experts.cut.overlap != "shared_experts":
            yield from _of(self._shared(True), "I", samples)
        gradients = unpermuted_backward(*self._copied(samples), self.precision, fused=self.fused)
        yield from _exchanged((gradients, *self._cast(samples)), there, second)
        yield self._experts(samples, "I")
        yield from _exchanged((), back, first)
        added = (self._sum(samples),) * (2 if any(self.shared) else 1)
        partial = samples * self.rows * self.hidden * float(BYTES[self.precision])
        after = (Exchange("all_reduce", partial, self.summed),) if self.summed else ()
        yield Segment(
            (*self._permuted(samples, there=False), *self.router.backward_input(samples), *added), after=after
        )

    def _experts(self, samples: int, phase: str) -> Segment:
        """The experts' products, between the exchanges of the ranks that share them."""
        dispatch = self.dispatch(samples)
        tokens = dispatch.arriving
        taken = dispatch.sent if self.sent_cast else dispatch.width
        # tokens of several ranks are sorted by expert; those of one rank, or of one expert, are in order
        sorts = self.experts.local > 1 and dispatch.sources > 1 and sum(tokens) > 0
        before = (self._sorted(sum(tokens) * (dispatch.sent + taken)),) if sorts else ()
        after = (self._sorted(sum(tokens) * 2 * dispatch.width),) if sorts else ()
        rows = round(sum(tokens))
        if phase == "F":
            kept = self._narrowing(rows)
            inner = (*self.up.forward(tokens), *kept, *self.between.forward(rows), *self.down.forward(tokens))
        else:
            inner = (
                *self.down.backward_input(tokens),
                *self._narrowing(rows),
                *self.between.backward_input(rows),
                *self.up.backward_input(tokens),
            )
        return Segment((*before, *inner, *after), before=dispatch.gathered(), after=dispatch.scattered())

    def expert_kernels(self, samples: int) -> tuple[Kernel, ...]:
        """The kernels of the experts of this rank, forward and backward."""
        tokens = self.dispatch(samples).arriving
        weights = (*self.down.backward_weights(tokens), *self.up.backward_weights(tokens))
        return (*self._experts(samples, "F").kernels, *self._experts(samples, "I").kernels, *weights)

    def _counted(self, samples: int) -> tuple[Kernel, ...]:
        """What the host has to know before it launches products and exchanges of sizes that depend on the tokens."""
        return () if self.experts.padded else (self.router.counted(samples),)

    def _permuted(self, samples: int, *, there: bool) -> tuple[Kernel, ...]:
        dispatch = self.dispatch(samples)
        width = dispatch.sent if there else dispatch.width
        return (permuted(samples * self.rows, sum(dispatch.tokens), width, self.precision),)

    def _cast(self, samples: int) -> tuple[Kernel, ...]:
        sent = self.experts.cut.sent_fp8
        return (cast_to_fp8(samples * self.rows, self.hidden, self.precision),) if sent else ()

    def _copied(self, samples: int) -> tuple[float, float, int]:
        """Tokens, their copies for experts, and features."""
        return samples * self.rows, sum(self.dispatch(samples).tokens), self.hidden

    def _sorted(self, nbytes: float) -> Kernel:
        return memory_bound(nbytes, precision=self.precision)

    def _sum(self, samples: int) -> Kernel:
        """The sum of two tensors of the size of the input."""
        return memory_bound(3 * samples * self.rows * self.hidden * BYTES[self.precision], precision=self.precision)

    def _beside(self, phase: str, samples: int) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
        """The segments of the shared expert that run beside the first exchange of *phase*, and beside the second.

        Empty unless it overlaps. Backward the gradient passes its second half first.
        """
        if self.experts.cut.overlap != "shared_experts":
            return (), ()
        backward = phase != "F"
        halves = [_of(half[::-1] if backward else half, phase, samples) for half in self.shared]
        return (halves[1], halves[0]) if backward else (halves[0], halves[1])

    def _shared(self, backward: bool) -> tuple[Operator, ...]:
        every = tuple(chain(*self.shared))
        return every[::-1] if backward else every

    def _shared_input(self, samples: int) -> float:
        """Bytes of the input that the shared expert keeps for itself too, since it is one tensor unless it is cast."""
        one = any(self.shared) and self.up.keeps_wide_input
        return samples * self.rows * self.hidden * float(BYTES[self.precision]) if one else 0.0


def _of(operators: Sequence[Operator], phase: str, samples: int) -> tuple[Segment, ...]:
    """The segments of *operators*. Their exchanges block: their products do not follow one another in a layer."""
    every = (segment for operator in operators for segment in operator.segments(phase, samples))
    return tuple(
        replace(segment, before=tuple(map(_whole, segment.before)), after=tuple(map(_whole, segment.after)))
        for segment in every
        if segment.kernels or segment.exchanges
    )


def _whole(exchange: Exchange) -> Exchange:
    return replace(exchange, divisible=False)


def _kernels(segments: Sequence[Segment]) -> tuple[Kernel, ...]:
    return tuple(kernel for segment in segments for kernel in segment.kernels)


def _exchanged(
    kernels: tuple[Kernel, ...], exchanges: tuple[Exchange, ...], beside: tuple[Segment, ...]
) -> Iterator[Segment]:
    """*kernels*, then *exchanges* with the kernels of *beside* at the same time.

    What *beside* exchanges itself comes before and after.
    """
    if not beside and len(exchanges) < 2:
        yield Segment(kernels, after=exchanges)
        return
    if kernels:
        yield Segment(kernels)
    before = tuple(exchange for segment in beside for exchange in segment.before)
    after = tuple(exchange for segment in beside for exchange in segment.after)
    yield Segment(_kernels(beside), before=before, within=exchanges, after=after)
