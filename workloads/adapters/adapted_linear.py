"""A frozen linear map with low-rank adapters beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

from simulator.kernel import BYTES, Kernel, matmul, memory_bound
from simulator.operation import Operation
from workloads.adapters.lora import Adapter
from workloads.operators.linear import Linear
from workloads.operators.parameter import ParameterTensor, matrix
from workloads.operators.sharded import WHOLE, Cut

MASK = 1
"""Bytes of an element of a dropout mask."""

DROPOUT = Operation("dropout", "elementwise", "adapter")

SCALE_AND_ADD = Operation("scale and add", "elementwise", "adapter")


@dataclass(frozen=True)
class AdaptedLinear(Linear):
    """A frozen linear map *base* with *adapters* of *rank*; other fields are those of *base*.

    Each adapter is two products, h = A x and B h; B h is scaled and added to the output, by two kernels of torch or
    by one if it is *fused* (PEFT, tuners/lora/layer.py, ``Linear.forward``). The base keeps nothing for the backward
    pass. An adapter keeps its input and h. With *drop* each adapter has an input of its own, dropped out.

    Tensor parallelism cuts B of a product that is cut by columns, and A of one that is cut by rows (*by_rows*). Every
    rank of *cut* has the whole other factor, and its gradient is a sum over them (PEFT, tuners/lora/tp_layer.py). h or
    dh of a rank is then a summand. The factors are linear, so it is added up with what the base exchanges, and no
    exchange is added to a pass. MFU counts a product by a whole factor once.
    """

    base: Linear = field(kw_only=True)
    adapters: tuple[Adapter, ...] = ()
    rank: int = 0
    drop: bool = False
    fused: bool = False
    by_rows: bool = False
    cut: Cut = WHOLE

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Those of the base, then A and B of each adapter."""
        return (*self.base.tensors, *(tensor for one in self.adapters for tensor in self._factors(one)))

    def _factors(self, adapter: Adapter) -> Iterator[ParameterTensor]:
        first, second = matrix(self.rank, self.inputs), matrix(adapter.outputs, self.rank)
        for tensor, whole in (first, not self.by_rows), (second, self.by_rows):
            axes = (self.cut.over,) if whole and self.cut.ranks > 1 else ()
            yield replace(tensor, reduced_over=(*axes, *tensor.reduced_over))

    def apart(self) -> tuple[Linear, ...]:
        """A product for each of the *splits*, with its adapter if it has one."""
        parts = self.base.apart()
        own = [tuple(one for one in self.adapters if one.split == place) for place in range(len(parts))]
        return tuple(self._of(part, few) if few else part for part, few in zip(parts, own, strict=True))

    def _of(self, part: Linear, adapters: tuple[Adapter, ...]) -> AdaptedLinear:
        few = tuple(replace(one, split=0) for one in adapters)
        return replace(self, outputs=part.outputs, splits=(), base=part, adapters=few)

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """The product of the base, then both products and the sum of each adapter."""
        rows = samples * self.rows
        own = (kernel for adapter in self.adapters for kernel in self._forward(rows, adapter))
        return (*self.base.forward(samples), *own)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """dx of each adapter, by way of dh = B^T dy, and of the base, added up."""
        rows = samples * self.rows
        own = (kernel for adapter in self.adapters[::-1] for kernel in self._backward(rows, adapter))
        return (*own, *self.base.backward_input(samples))

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """dB = dy^T h and dA = dh^T x of each adapter."""
        rows = samples * self.rows
        return tuple(
            self._by(whole, matmul(*sides, rows, precision=self.precision, rows=sides))
            for adapter in self.adapters[::-1]
            for whole, sides in (
                (self.by_rows, (adapter.outputs, self.rank)),
                (not self.by_rows, (self.rank, self.inputs)),
            )
        )

    def kept_bytes(self, samples: int) -> float:
        """The input, unless each adapter has one of its own, and `kept_beside_input`."""
        whole = samples * self.rows * self.inputs * BYTES[self.precision] / self.kept_share
        return (0.0 if self.drop or not self.keeps_input else whole) + self.kept_beside_input(samples)

    def kept_beside_input(self, samples: int) -> float:
        """h of each adapter; with dropout its input, too, and the mask."""
        width = BYTES[self.precision]
        each = self.rank * width + (self.inputs * (width + MASK) if self.drop else 0)
        return float(samples * self.rows * each * len(self.adapters))

    @property
    def keeps_inputs(self) -> bool:
        """False: it keeps h."""
        return False

    def weight_bytes(self, samples: int) -> float:
        """What it keeps, the gradient of its output, and dh of each adapter."""
        held = (self.outputs + self.rank * len(self.adapters)) * BYTES[self.precision]
        return self.kept_bytes(samples) + samples * self.rows * held

    def transient_bytes(self, phase: str, samples: int) -> float:
        """Those of the base."""
        return self.base.transient_bytes(phase, samples)

    def _forward(self, rows: int, adapter: Adapter) -> Iterator[Kernel]:
        if self.drop:
            yield self._pass(DROPOUT, rows * self.inputs, 2, MASK)
        yield self._by(not self.by_rows, matmul(rows, self.rank, self.inputs, precision=self.precision))
        yield self._by(self.by_rows, matmul(rows, adapter.outputs, self.rank, precision=self.precision))
        passes, launches = (3, 1) if self.fused else (5, 2)
        yield self._pass(SCALE_AND_ADD, rows * adapter.outputs, passes, launches=launches)

    def _backward(self, rows: int, adapter: Adapter) -> Iterator[Kernel]:
        if not self.fused:
            yield self._pass(SCALE_AND_ADD, rows * adapter.outputs, 2)
        yield self._by(self.by_rows, matmul(rows, self.rank, adapter.outputs, precision=self.precision))
        yield self._by(not self.by_rows, matmul(rows, self.inputs, self.rank, precision=self.precision))
        if self.drop:
            yield self._pass(DROPOUT, rows * self.inputs, 2, MASK)
        yield self._pass(SCALE_AND_ADD, rows * self.inputs, 3)

    def _by(self, whole: bool, product: Kernel) -> Kernel:
        """*product* by a factor that every rank has *whole*, or else a part of."""
        return replace(product, copies=self.cut.ranks) if whole else product

    def _pass(self, operation: Operation, elements: int, passes: int, mask: int = 0, launches: int = 1) -> Kernel:
        nbytes = elements * (passes * BYTES[self.precision] + mask)
        return memory_bound(nbytes, precision=self.precision, launches=launches, operation=operation)


def adapted(
    base: Linear,
    adapters: tuple[Adapter, ...],
    rank: int,
    *,
    drop: bool = False,
    fused: bool = False,
    by_rows: bool = False,
    cut: Cut = WHOLE,
) -> Linear:
    """*base*, a frozen linear map, with *adapters*; itself if there are none."""
    if not adapters:
        return base
    own = {one.name: getattr(base, one.name) for one in fields(Linear)}
    return AdaptedLinear(
        **own,
        base=base,
        adapters=adapters,
        rank=rank,
        drop=drop,
        fused=fused,
        by_rows=by_rows,
        cut=cut,
    )
