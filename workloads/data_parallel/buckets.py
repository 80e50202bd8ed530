"""A bucket is a set of gradients that are reduced together; a reduction turns it into ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, memory_bound
from clustersim.simulator.schedule.ops import Op
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.parameter import REPLICAS, ParameterTensor

BUCKETS = Operation("copies to buckets", "elementwise")


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameter *tensors* that a program holds of the layer *name*, in order of registration."""

    name: str
    tensors: tuple[ParameterTensor, ...]

    @property
    def parameters(self) -> int:
        """How many parameters they have."""
        return sum(tensor.count for tensor in self.tensors)

    def gathered(self, width: int) -> float:
        """Their bytes as ranks gather them; *width*: bytes of an element in the model's precision."""
        return float(sum(tensor.gathered(width) for tensor in self.tensors))

    @property
    def trained(self) -> Weights:
        """Those tensors that have gradients."""
        return Weights(self.name, tuple(tensor for tensor in self.tensors if tensor.trainable))

    def over(self, axis: str) -> Weights:
        """Those tensors that data parallelism reduces over *axis*."""
        return Weights(self.name, tuple(tensor for tensor in self.tensors if tensor.reduced_over[-1] == axis))


def reduced_axes(layers: Sequence[Weights]) -> list[str]:
    """The axes over which data parallelism reduces the gradients of *layers*: ``dp``, and others that tensors name."""
    return list(dict.fromkeys(tensor.reduced_over[-1] for weights in layers for tensor in weights.tensors))


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
