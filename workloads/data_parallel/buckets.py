"""A bucket is a set of gradients that are reduced together; a reduction, compressed or not, turns it into ops.

A compressed reduction has kernels that encode, messages, and kernels that decode. A method says what it does with a
bucket (`BucketCode`). Here its ops are placed as torch places those of a communication hook: the hook runs when the
bucket is full, so that its first kernels are on the stream of the backward pass. What follows a message runs on a
stream of its own, beside the backward pass (torch, csrc/distributed/c10d/reducer.cpp, ``run_comm_hook``; the callbacks
of a CUDA future have streams from a pool, ATen/core/ivalue_inl.h). A hook that synchronises with the GPU blocks the
backward pass until it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS, ParameterTensor

BUCKETS = Operation("copies to buckets", "elementwise")


@dataclass(frozen=True)
class Weights:
    """The parameter *tensors* that a program holds of the layer *name*, in order of registration."""

    name: str
    tensors: tuple[ParameterTensor, ...]

    @cached_property
    def parameters(self) -> int:
        """How many parameters they have."""
        return sum(tensor.count for tensor in self.tensors)

    def gathered(self, width: int) -> float:
        """Their bytes as ranks gather them; *width*: bytes of an element in the model's precision."""
        return float(sum(tensor.gathered(width) for tensor in self.tensors))

    @cached_property
    def trained(self) -> Weights:
        """Those tensors that have gradients."""
        return Weights(self.name, tuple(tensor for tensor in self.tensors if tensor.trainable))

    @cached_property
    def by_axis(self) -> dict[str, Weights]:
        """The tensors by the axis over which data parallelism reduces them."""
        found: dict[str, list[ParameterTensor]] = {}
        for tensor in self.tensors:
            found.setdefault(tensor.reduced_over[-1], []).append(tensor)
        return {axis: Weights(self.name, tuple(tensors)) for axis, tensors in found.items()}

    def over(self, axis: str) -> Weights:
        """Those tensors that data parallelism reduces over *axis*."""
        return self.by_axis.get(axis) or Weights(self.name, ())


def reduced_axes(layers: Sequence[Weights]) -> list[str]:
    """The axes over which data parallelism reduces the gradients of *layers*: ``dp``, and others that tensors name."""
    return list(dict.fromkeys(axis for weights in layers for axis in weights.by_axis))


@dataclass(frozen=True, slots=True)
class Bucket:
    """*nbytes* of gradients, complete after the backward pass of *layer*, and summed over the axis *over*.

    *tensors*: the bytes of each tensor in it. *buffer*: bytes that it holds beside the gradients until it is reduced.
    *dtype*: that of its elements. *matrices*: (rows, columns) of each tensor; one column if it is a vector.
    In a program it also has the *name* of its reduction, the *action* that it belongs to, *filled_by*, the op that
    completes it, and the number of *ranks* on its axis. *last*: no backward pass of the stage follows before its
    optimizer step. A compressed bucket has fewer *nbytes*, but the same *buffer*.
    """

    nbytes: float
    layer: str
    tensors: tuple[float, ...] = ()
    over: str = REPLICAS
    buffer: float = 0.0
    name: str = ""
    action: Action | None = None
    filled_by: str = ""
    last: bool = True
    dtype: str = "fp32"
    matrices: tuple[tuple[int, int], ...] = ()
    ranks: int = 0

    @classmethod
    def of(cls, tensors: Sequence[ParameterTensor], dtype: str, layer: str, over: str = REPLICAS) -> Bucket:
        """The gradients of *tensors* in *dtype*."""
        sizes = tuple(float(tensor.count * BYTES[dtype]) for tensor in tensors)
        shapes = tuple((one.rows, one.columns) if one.rows > 1 else (one.count, 1) for one in tensors)
        return cls(sum(sizes), layer, sizes, over, dtype=dtype, matrices=shapes)

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return BYTES[self.dtype]

    @property
    def elements(self) -> float:
        """How many gradients it has."""
        return self.nbytes / self.width


@dataclass(frozen=True, slots=True)
class BucketCopies:
    """The kernels around the reduction of a bucket: they read or write its bytes *passes* times.

    The host launches so many for each tensor of the bucket (*by_tensor*), and for the bucket (*by_bucket*).
    """

    passes: float = 0.0
    by_tensor: int = 0
    by_bucket: int = 0

    def kernel(self, buckets: Iterable[Bucket]) -> Kernel:
        """All that *buckets* need, as one kernel."""
        own = list(buckets)
        launches = self.by_bucket * len(own) + self.by_tensor * sum(len(bucket.tensors) for bucket in own)
        nbytes = self.passes * sum(bucket.nbytes for bucket in own)
        return memory_bound(nbytes, launches=launches, operation=BUCKETS)


NO_COPIES = BucketCopies()
"""Nothing is done to a bucket but its reduction."""

BUCKET_COPIES: Mapping[str, BucketCopies] = {
    "copies": BucketCopies(passes=4.0, by_tensor=2),
    "half": BucketCopies(passes=2.0, by_bucket=1),
    "two": BucketCopies(passes=6.0, by_tensor=1, by_bucket=2),
    "none": BucketCopies(passes=2.0, by_bucket=1),
    "averaged": NO_COPIES,
}
"""By `Software.gradient_buffers`, what a bucket costs beside its reduction.

``copies``: each gradient is divided into the bucket, and copied back (torch, csrc/distributed/c10d/reducer.cpp,
``mark_variable_ready_dense`` and ``finalize_bucket_dense``). ``two``: gradients are flattened, divided and copied back
one by one (DeepSpeed, runtime/engine.py, ``allreduce_and_copy``; runtime/zero/stage_1_and_2.py likewise). ``none``:
the buffer is divided (Megatron-LM, megatron/model/distributed.py, ``allreduce_gradients``). ``half``: likewise the
fp32 buffer, which a hook of DistributedDataParallel reduces in place (nanotron, parallel/data_parallel/utils.py).
``averaged``: the reduction itself divides, as NCCL's ``ncclAvg`` can."""


def bucket_copies(software: Software, model: Model) -> BucketCopies:
    """Those of *software*; none if *model* has measured durations, which contain them."""
    return BUCKET_COPIES[software.gradient_buffers] if model.optimizer_seconds is None else NO_COPIES


Reduction = Callable[[Bucket], Iterable[Op]]
"""The ops that reduce a bucket, in order: collectives, and the kernels around them. See `workloads.reductions`."""


BLOCKING = "compute"
"""The stream of the backward pass; a reduction on it blocks."""


@dataclass(frozen=True, slots=True)
class CodedMessage:
    """A collective of *nbytes*, as `Collective` counts them. *kind*: "" for that of the plain reduction.

    *over*: the axis; "" for that of the bucket.
    """

    nbytes: float
    kind: str = ""
    over: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """*messages* that follow *kernels*."""

    kernels: tuple[Kernel, ...]
    messages: tuple[CodedMessage, ...]


@dataclass(frozen=True, slots=True)
class BucketCode:
    """What a method does with a bucket: *rounds*, then the kernels that *decode*.

    *sent*: bytes of the encoded gradients of one rank. *held*: bytes from the first kernel to the last. *kept*: bytes
    from step to step, such as the error that is fed back. *synchronous*: the backward pass waits for the last kernel.
    *beside*: all kernels are on the stream of the messages, as DeepSpeed has them, not as torch places a hook's.
    *warm_up*: the share of steps of a run that are not compressed; *start*: the number of such steps. *answer*: bytes
    that a parameter server sends back in place of the parameters, which *decode* then updates.
    """

    rounds: tuple[Round, ...]
    decode: tuple[Kernel, ...]
    sent: float
    held: float
    kept: float = 0.0
    synchronous: bool = False
    beside: bool = False
    warm_up: float = 0.0
    start: int = 0
    answer: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding(Compute):
    """Kernels of compression. The first op of a bucket says that its *gradients* are *sent* in so many bytes.

    *decodes*: it is the last op of the bucket. *warm_up*, *start*: as in `BucketCode`.
    """

    gradients: float = 0.0
    sent: float = 0.0
    warm_up: float = 0.0
    start: int = 0
    decodes: bool = False


@dataclass(frozen=True)
class Compressed:
    """A reduction by *reduce* that encodes a bucket by *code*."""

    reduce: Reduction
    code: Callable[[Bucket], BucketCode]

    def __call__(self, bucket: Bucket) -> Iterable[Op]:
        """The ops that reduce *bucket*."""
        return self.reduce(bucket)


def wrapped(reduction: Reduction, reduce: Reduction) -> Reduction:
    """*reduce*, which adds something to *reduction*, and keeps what that keeps."""
    return replace(reduction, reduce=reduce) if isinstance(reduction, Compressed) else reduce


def compressed(
    reduction: Reduction,
    method: str,
    code: Callable[[Bucket, str], BucketCode],
    refused: Mapping[str, str] | None = None,
) -> Compressed:
    """*reduction* with buckets that *method* encodes by *code*.

    *code* is given the bucket and the kind of the collective that it replaces. *refused*: the kinds with which the
    method does not go, and why. Raises `ScenarioError` for these.
    """

    def plain(bucket: Bucket) -> Collective:
        ops = [op for op in reduction(bucket) if isinstance(op, Collective)]
        why = (refused or {}).get(ops[0].kind)
        if why is None and len(ops) > 1 and any(message.kind for message in _all_messages(code(bucket, ops[0].kind))):
            why = "hybrid shards need a second collective for the sum"
        if why:
            raise ScenarioError(f"compression: {method} is not possible here: {why}")
        return ops[0]

    def coded(bucket: Bucket) -> BucketCode:
        return code(bucket, plain(bucket).kind)

    def reduce(bucket: Bucket) -> Iterator[Op]:
        return _ops(reduction, bucket, coded(bucket), plain(bucket))

    return Compressed(reduce, coded)


def _all_messages(code: BucketCode) -> Iterator[CodedMessage]:
    for one in code.rounds:
        yield from one.messages


def _ops(reduction: Reduction, bucket: Bucket, code: BucketCode, plain: Collective) -> Iterator[Op]:
    """Yield the ops of *code*; *plain*: the collective of *reduction* for *bucket*. The last one frees its buffer."""
    blocking = plain.stream == BLOCKING
    later = BLOCKING if blocking or code.synchronous else plain.stream if code.beside else f"{plain.stream}.hook"
    held = {"buffers": code.held} if code.held else {}
    after = plain.after if code.beside else ()
    for number, one in enumerate(code.rounds):
        name = f"{bucket.name}.encode{number}"
        if number:
            yield Coding(name=name, kernels=one.kernels, stream=later, after=after)
        else:
            stream = later if code.beside else BLOCKING
            first = Coding(name=name, kernels=one.kernels, stream=stream, after=after, allocates=held)
            yield replace(first, gradients=bucket.nbytes, sent=code.sent, warm_up=code.warm_up, start=code.start)
        own = replace(bucket, filled_by=name, buffer=bucket.buffer if one is code.rounds[-1] else 0.0)
        ops = list(_messages(reduction, own, one.messages, plain))
        yield from ops
        after = () if blocking else (ops[-1].name,)
    name = f"{bucket.name}.decode"
    yield Coding(name=name, kernels=code.decode, stream=later, after=after, frees=held, decodes=True)


def _messages(
    reduction: Reduction, bucket: Bucket, messages: Sequence[CodedMessage], plain: Collective
) -> Iterator[Op]:
    """Yield the collectives of a round, which follow ``bucket.filled_by``; the last one frees the bucket's buffer."""
    for place, message in enumerate(messages):
        name = f"{bucket.filled_by}.{place}"
        buffer = bucket.buffer if place == len(messages) - 1 else 0.0
        if message.kind:
            after = (bucket.filled_by,) if plain.stream != BLOCKING else ()
            frees, over = {"buffers": buffer} if buffer else {}, message.over or plain.over
            made = replace(plain, name=name, kind=message.kind, over=over, nbytes=message.nbytes)
            yield replace(made, after=after, frees=frees)
        else:
            yield from reduction(replace(bucket, name=name, nbytes=message.nbytes, buffer=buffer))
