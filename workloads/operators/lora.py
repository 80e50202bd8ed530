"""Low-rank adapters (LoRA): y = x W^T + s (x A^T) B^T, where W is frozen and only A and B are trained.

Hu et al. 2021, "LoRA" (arXiv:2106.09685, section 4.1). The frozen weights may be in 4 bits: Dettmers et al. 2023,
"QLoRA" (arXiv:2305.14314), see `frozen_weights`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, matmul, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.operators.frozen_weights import FP32, Packed, Quantisation, QuantisedLinear, quantised
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.operator import ParameterTensor, matrix
from clustersim.workloads.operators.sharded import WHOLE, Cut

EVERY = ("qkv", "projection", "gate", "up", "down")
"""All linear maps of a layer. ``qkv``: the product that makes queries, keys and values."""


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters of *rank* for the *targets*; *drop*: their input is dropped out. *quantisation*: of the frozen weights.

    None: they keep the precision of the model. *whole*: ``embedding`` and ``head`` where their tables are trained, too,
    without an adapter, as copies beside the frozen ones (PEFT, utils/other.py, ``ModulesToSaveWrapper``).
    """

    rank: int
    targets: tuple[str, ...]
    drop: bool = False
    quantisation: Packed | None = None
    whole: tuple[str, ...] = ()

    def adapters(self, sizes: Mapping[str, int], *, apart: bool) -> tuple[Adapter, ...]:
        """The adapters of a linear map that makes the outputs *sizes*, by name; *apart*: each has a tensor of its own.

        >>> Lora(8, ("query", "value")).adapters({"query": 64, "key": 16, "value": 16}, apart=True)
        (Adapter(outputs=64, split=0), Adapter(outputs=16, split=2))
        """
        every = "qkv" in self.targets and "query" in sizes
        own = {place: size for place, (name, size) in enumerate(sizes.items()) if every or name in self.targets}
        if own and not apart and len(own) == len(sizes):
            own = {0: sum(sizes.values())}
        return tuple(Adapter(size, place) for place, size in own.items())


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter with so many *outputs*; *split*: the number of the weight tensor that it is added to."""

    outputs: int
    split: int = 0


MASK = 1
"""Bytes of an element of a dropout mask."""

DROPOUT = Operation("dropout", "elementwise", "adapter")

SCALE_AND_ADD = Operation("scale and add", "elementwise", "adapter")

ADAPTER_CAST = Operation("cast", "elementwise", "adapter")


@dataclass(frozen=True)
class AdaptedLinear(Linear):
    """A frozen linear map *base* with *adapters* of *rank*; other fields are those of *base*.

    Each adapter is two products, h = A x and B h; B h is scaled and added to the output, by two kernels of torch or
    by one if it is *fused* (PEFT, tuners/lora/layer.py, ``Linear.forward``). The base keeps nothing for the backward
    pass. An adapter keeps its input and h. With *drop* each adapter has an input of its own, dropped out. In *fp32* its
    factors are cast in each pass, and so are their gradients. Its input is then in fp32 for the dropout, and autocast
    casts it back: PEFT casts that of a base in 16 bits (``_cast_input_dtype``), one in 4 bits may have it so already.

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
    fp32: bool = False
    cut: Cut = WHOLE

    @property
    def stream_precision(self) -> str:
        """That of the base."""
        return self.base.stream_precision

    @property
    def _casts_input(self) -> bool:
        """True if the input of an adapter is cast to fp32 first."""
        return self.fp32 and not isinstance(self.base, QuantisedLinear)

    @property
    def _width(self) -> int:
        """Bytes of an element of an adapter's input, before its product."""
        return BYTES["fp32"] if self._casts_input else BYTES[self.stream_precision]

    @property
    def _own_input(self) -> bool:
        """True if each adapter has an input of its own: dropped out, or cast."""
        return self.drop or self._width > BYTES[self.precision]

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Those of the base, then A and B of each adapter."""
        return (*self.base.tensors, *(tensor for one in self.adapters for tensor in self._factors(one)))

    @property
    def modules(self) -> int:
        """Beside those of all matrices the dropout of each adapter, and the module around it and the base."""
        return super().modules + 2 * len(self.adapters)

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
        """The input, unless each adapter has one of its own and the base needs none, and `kept_beside_input`."""
        whole = samples * self.rows * self.inputs * BYTES[self.precision] / self.kept_share
        of_base = self.base.kept_bytes(samples) - self.base.kept_beside_input(samples)
        of_adapters = 0.0 if self._own_input or not self.keeps_input else whole
        return max(of_base, of_adapters) + self.kept_beside_input(samples)

    def kept_beside_input(self, samples: int) -> float:
        """h of each adapter; its input, too, if that is its own, and the mask of a dropout."""
        width = BYTES[self.precision]
        each = self.rank * width + self.inputs * (width * self._own_input + MASK * self.drop)
        return float(samples * self.rows * each * len(self.adapters)) + self.base.kept_beside_input(samples)

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
        if self._casts_input:
            yield self._cast(rows * self.inputs)
        if self.drop:
            yield self._dropout(rows)
        if self._width > BYTES[self.precision]:
            yield self._cast(rows * self.inputs)
        yield from self._factors_cast(adapter)
        yield self._by(not self.by_rows, matmul(rows, self.rank, self.inputs, precision=self.precision))
        yield self._by(self.by_rows, matmul(rows, adapter.outputs, self.rank, precision=self.precision))
        width, stream = BYTES[self.precision], BYTES[self.stream_precision]
        scaled, launches = (0, 1) if self.fused else (2 * width, 2)
        each = scaled + width + 2 * stream
        yield self._moved(SCALE_AND_ADD, rows * adapter.outputs * each, launches)

    def _backward(self, rows: int, adapter: Adapter) -> Iterator[Kernel]:
        width, stream = BYTES[self.precision], BYTES[self.stream_precision]
        if stream > width:
            yield self._cast(rows * adapter.outputs)
        if not self.fused:
            yield self._moved(SCALE_AND_ADD, rows * adapter.outputs * 2 * width)
        yield self._by(self.by_rows, matmul(rows, self.rank, adapter.outputs, precision=self.precision))
        yield self._by(not self.by_rows, matmul(rows, self.inputs, self.rank, precision=self.precision))
        yield from self._factors_cast(adapter)
        if self._width > width:
            yield self._cast(rows * self.inputs)
        if self.drop:
            yield self._dropout(rows)
        if self._casts_input:
            yield self._cast(rows * self.inputs)
        yield self._moved(SCALE_AND_ADD, rows * self.inputs * 3 * stream)

    def _by(self, whole: bool, product: Kernel) -> Kernel:
        """*product* by a factor that every rank has *whole*, or else a part of."""
        return replace(product, copies=self.cut.ranks) if whole else product

    def _factors_cast(self, adapter: Adapter) -> tuple[Kernel, ...]:
        """Casts of A and B in fp32, or of their gradients."""
        return (self._cast(self.rank * (self.inputs + adapter.outputs), 2),) * self.fp32

    def _dropout(self, rows: int) -> Kernel:
        return self._moved(DROPOUT, rows * self.inputs * (2 * self._width + MASK))

    def _cast(self, elements: int, casts: int = 1) -> Kernel:
        """*casts* of so many elements. Each is one operator, while a stack's `launch` is that of all operators, views
        among them, for each kernel."""
        nbytes = float(elements * (FP32 + BYTES[self.precision]))
        return memory_bound(nbytes, precision=self.precision, launches=0, operators=casts, operation=ADAPTER_CAST)

    def _moved(self, operation: Operation, nbytes: float, launches: int = 1) -> Kernel:
        return memory_bound(nbytes, precision=self.precision, launches=launches, operation=operation)


def adapted(
    base: Linear,
    adapters: tuple[Adapter, ...],
    rank: int,
    *,
    drop: bool = False,
    fused: bool = False,
    by_rows: bool = False,
    fp32: bool = False,
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
        fp32=fp32,
        cut=cut,
    )


def with_adapters(
    linear: Linear,
    lora: Lora | None,
    sizes: Mapping[str, int],
    cut: Cut,
    *,
    fused: bool,
    by_rows: bool = False,
    fp32: bool = False,
    wide: bool = False,
    joint: bool = False,
    keeps_inputs: bool = False,
) -> Linear:
    """*linear*, a product of a layer, as *lora* fine-tunes it; unchanged if that is None.

    *sizes*: its outputs by the name of the target; empty if it is none. *fused*: sums are part of one kernel with what
    they follow. *by_rows*: tensor parallelism cuts it by rows. *fp32*: adapters are. *wide*: so are input and output of
    a product in 4 bits. *joint*: several outputs are one tensor. *keeps_inputs*: products in 4 bits by bitsandbytes do.
    Raises `ScenarioError` for a cut that is not known.
    """
    if lora is None:
        return linear
    if cut.grid or cut.by_columns:
        raise ScenarioError("lora is known of tp as Megatron-LM cuts layers; give one degree, and no tp_split")
    packed = lora.quantisation
    if keeps_inputs and isinstance(packed, Quantisation):
        packed = replace(packed, keeps_inputs=True)
    base = quantised(linear, packed, wide=wide) if packed else replace(linear, frozen=True)
    adapters = lora.adapters(sizes, apart=bool(linear.splits) and not joint)
    return adapted(base, adapters, lora.rank, drop=lora.drop, fused=fused, by_rows=by_rows, fp32=fp32, cut=cut)
