"""One file is one way to reduce gradients: a function of the file's name returns a `Reduction` (bucket -> ops). Here is
how compressed gradients are encoded: kernels and their bytes, quantised messages, matrices of low rank.

A function with a first parameter *reduction* compresses: it wraps another reduction, and may shrink the bucket, add
kernels, or choose other collectives. Its further parameters are the keys of ``parallelism.data.compression``. With the
same parameters, a function ``gathering`` of the file says how sharded weights are gathered.

An all-gather of p messages needs one round; each rank receives p - 1 messages. With an all-to-all each rank gets one
part of every message and sums these parts; it encodes its part of the sum again, and all ranks gather the parts. So a
rank sends and receives about two messages, whatever p is. A reduce-scatter needs the all-to-all alone. A server gets
the messages as they are.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, model_validator

from clustersim.simulator.hardware.kernel import Kernel, matmul, memory_bound
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError, ScheduleError
from clustersim.simulator.reading.names_and_parameters import known, parameters
from clustersim.simulator.reading.quantities import Section
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.ops import Collective, Op, Recv, Send
from clustersim.workloads.data_parallel.buckets import Bucket, BucketCode, CodedMessage, Reduction, Round

if TYPE_CHECKING:
    from clustersim.workloads.data_parallel.parameter_gathers import Gathering

PACKAGE = "clustersim.workloads.reductions"

COMMUNICATIONS = Collective | Send | Recv


class CompressionKeys(Section):
    """How gradients are compressed: *method* is a file of this folder, or an import path; more keys are its own."""

    model_config = ConfigDict(extra="allow")

    method: str
    """fp16, quantise, sign, one_bit_adam, top_k, random_k, powersgd, atomo, gradzip or sketched, or an import path of
    your own; further keys are its parameters. Required."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            known(self.method, PACKAGE, only=methods())
        except Fault as fault:
            raise Fault("method", fault.message, fault.hint) from None
        self._parameters()
        return self

    def wrap(self, reduction: Reduction) -> Reduction:
        """*reduction* with compressed buckets."""
        made: Reduction = lookup.function(PACKAGE, self.method)(reduction, **self._parameters())
        return _exchanging(self.method, made) if "." in self.method else made

    @property
    def gathering(self) -> "Gathering | None":
        """How a method that gathers parameters does so; None for one that compresses gradients alone."""
        made = lookup.attribute(lookup.function(PACKAGE, self.method), "gathering")
        return made(**self._parameters()) if made else None

    def _parameters(self) -> dict[str, Any]:
        return parameters(lookup.function(PACKAGE, self.method), self.model_extra or {}, ("method",))


def _exchanging(name: str, reduction: Reduction) -> Reduction:
    """The user's *reduction*, which must exchange something over the axis of each bucket that several ranks hold."""

    def checked(bucket: Bucket) -> Iterator[Op]:
        ops = list(reduction(bucket))
        if bucket.ranks > 1 and not any(isinstance(op, COMMUNICATIONS) and op.nbytes for op in ops):
            raise ScheduleError(
                f"{name} exchanges nothing: the gradients of {bucket.layer}, {bucket.nbytes:.0f} B, stay different on "
                f"the {bucket.ranks} ranks of {bucket.over}; yield a Collective, or the ops of the reduction it wraps"
            )
        yield from ops

    return checked


def methods() -> list[str]:
    """The names of the files whose function wraps another reduction."""
    return [name for name in lookup.names(PACKAGE) if _wraps(name)]


def _wraps(name: str) -> bool:
    function = lookup.function(PACKAGE, name)
    return "reduction" in function.__code__.co_varnames[: function.__code__.co_argcount]


SECTOR = 32
"""Bytes of the smallest access to a GPU's memory: an element at a random place costs as many (NVIDIA, "CUDA C++ Best
Practices Guide", section "Coalesced Access to Global Memory")."""

INDEX = 4
"""Bytes of an index on the wire, int32."""

LONG_INDEX = 8
"""Bytes of an index of torch, int64."""

SCALE = 4
"""Bytes of a scale, fp32."""

DIGIT_PASSES = 4
"""Passes of a radix selection or sort over 32-bit keys with digits of 8 bits (torch, ATen/native/cuda/
TensorTopK.cu, ``mbtopk``: ``RADIX_BITS = 8``)."""


def passes(*nbytes: float) -> tuple[Kernel, ...]:
    """A kernel for each of *nbytes* that it reads and writes."""
    return tuple(memory_bound(one) for one in nbytes)


def error_added(bucket: Bucket) -> Kernel:
    """The error of the step before is added to the gradients: both are read, and the sum is written."""
    return memory_bound(3 * bucket.nbytes)


def error_kept(bucket: Bucket) -> Kernel:
    """The difference of the gradients and what was sent of them: both are read, and it is written."""
    return memory_bound(3 * bucket.nbytes)


def selected(bucket: Bucket, count: float) -> tuple[Kernel, ...]:
    """The *count* elements of *bucket* of largest magnitude, with indices, unsorted.

    Magnitudes are written. A radix selection reads them once for each digit, and twice to place what it found: counts
    of each block, then the elements (torch, ATen/native/cuda/TensorTopK.cu, ``mbtopk::gatherTopK``). The chosen values
    are then gathered from their places, and indices cut to `INDEX` bytes.
    """
    found = count * (bucket.width + LONG_INDEX)
    digits = passes(*[bucket.nbytes] * DIGIT_PASSES)
    values = count * (LONG_INDEX + SECTOR + bucket.width)
    return (
        *passes(2 * bucket.nbytes),
        *digits,
        *passes(bucket.nbytes, bucket.nbytes + found, values, count * (LONG_INDEX + INDEX)),
    )


def added_sparse(bucket: Bucket, count: float, ranks: int) -> tuple[Kernel, ...]:
    """*bucket* set to zero; then for each of *ranks* its *count* values are added at their indices."""
    each = count * (bucket.width + INDEX + 2 * SECTOR)
    return (*passes(bucket.nbytes), memory_bound(ranks * each, launches=ranks))


def ranks_of(bucket: Bucket) -> int:
    """The number of ranks that reduce *bucket*. Raises `ScenarioError` if the method of data parallelism hides it."""
    if not bucket.ranks:
        raise ScenarioError(
            "this method of data parallelism does not say how many ranks reduce a bucket; it must give "
            "reduce_gradients the degrees of the axes"
        )
    return bucket.ranks


Exchange = Literal["all_gather", "all_to_all"]


@dataclass(frozen=True)
class Quantiser:
    """*size*: bytes of the message of a bucket. *encode*: its kernels. *total*: those that sum so many messages.

    *answers*: a parameter server answers with a message too, by which the GPUs update parameters of their own.
    """

    size: Callable[[Bucket], float]
    encode: Callable[[Bucket], tuple[Kernel, ...]]
    total: Callable[[Bucket, int], tuple[Kernel, ...]]
    answers: bool = False

    def code(self, bucket: Bucket, kind: str, exchange: Exchange, *, error_feedback: bool) -> BucketCode:
        """How *bucket* is summed in place of a collective of *kind*; an all-reduce by *exchange*."""
        size = self.size(bucket)
        encode = self.encode(bucket)
        if error_feedback:
            encode = (error_added(bucket), *encode, *self.total(bucket, 1), error_kept(bucket))
        kept = bucket.nbytes if error_feedback else 0.0
        if kind == "reduce":
            decode = (*self.total(bucket, 1), memory_bound(3 * bucket.nbytes)) if self.answers else ()
            answer = size if self.answers else None
            return BucketCode(
                (Round(encode, (CodedMessage(size),)),), decode, sent=size, held=size, kept=kept, answer=answer
            )
        ranks = ranks_of(bucket)
        part = replace(bucket, nbytes=bucket.nbytes / ranks)
        if kind == "reduce_scatter":
            scattered = Round(encode, (CodedMessage(size, "all_to_all"),))
            return BucketCode((scattered,), self.total(part, ranks), sent=size, held=2 * size, kept=kept)
        if exchange == "all_gather":
            gathered = Round(encode, (CodedMessage(ranks * size, "all_gather"),))
            return BucketCode((gathered,), self.total(bucket, ranks), sent=size, held=(1 + ranks) * size, kept=kept)
        again = (*self.total(part, ranks), *self.encode(part))
        rounds = (
            Round(encode, (CodedMessage(size, "all_to_all"),)),
            Round(again, (CodedMessage(ranks * self.size(part), "all_gather"),)),
        )
        held = 2 * size + part.nbytes + ranks * self.size(part)
        return BucketCode(rounds, self.total(bucket, 1), sent=size, held=held, kept=kept)


@dataclass(frozen=True, slots=True)
class Matrix:
    """The gradient of a tensor of *rows* x *columns*, approximated with *rank* columns of each factor.

    *count*: so many tensors of this shape share each launch.
    """

    rows: int
    columns: int
    rank: int
    count: int = 1

    @property
    def elements(self) -> int:
        """Those of all gradients."""
        return self.count * self.rows * self.columns

    def times(self, transposed: bool, dtype: str) -> Kernel:
        """The gradient, or the *transposed* one, times a factor."""
        m, k = (self.columns, self.rows) if transposed else (self.rows, self.columns)
        return matmul(m, self.rank, k, batch=self.count, precision=dtype)

    def product(self, dtype: str) -> Kernel:
        """The product of both factors: the approximated gradient."""
        return matmul(self.rows, self.columns, self.rank, batch=self.count, precision=dtype)


@dataclass(frozen=True, slots=True)
class Split:
    """The *matrices* of a bucket that are worth compressing, and the *elements* of the *others* tensors."""

    matrices: tuple[Matrix, ...]
    elements: float
    others: int

    @property
    def left(self) -> int:
        """Elements of all left factors (P)."""
        return sum(one.count * one.rows * one.rank for one in self.matrices)

    @property
    def right(self) -> int:
        """Elements of all right factors (Q)."""
        return sum(one.count * one.columns * one.rank for one in self.matrices)

    def batched(self) -> Self:
        """The same with one launch for all matrices of a shape."""
        counts = Counter(self.matrices)
        return replace(self, matrices=tuple(replace(one, count=count) for one, count in counts.items()))


def split(bucket: Bucket, rank: int, min_compression_rate: float) -> Split:
    """The tensors of *bucket*, as torch's PowerSGD hook decides.

    A matrix n x m is worth compressing if (n + m) r x *min_compression_rate* < n m, for r = min(n, m, *rank*)
    (torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py, ``_should_compress``). For a vector m = 1, so that
    it is not for a rate of 1 or more.

    >>> bucket = Bucket(4.0 * (4096 * 1024 + 1024), "a", matrices=((4096, 1024), (1024, 1)))
    >>> found = split(bucket, 4, 2.0)
    >>> found.left, found.right, found.elements
    (16384, 4096, 1024.0)
    """
    matrices = []
    for n, m in bucket.matrices:
        r = min(n, m, rank)
        if (n + m) * r * min_compression_rate < n * m:
            matrices.append(Matrix(n, m, r))
    compressed = sum(one.elements for one in matrices)
    return Split(tuple(matrices), bucket.elements - compressed, len(bucket.matrices) - len(matrices))


def orthogonalised(matrices: Sequence[Matrix], width: int, *, left: bool) -> tuple[Kernel, ...]:
    """The *left* or right factors of *matrices* with orthogonal columns, by Gram-Schmidt.

    For each column: its norm, a division, and for the columns behind it a product, a sum, a product and a subtraction
    (powerSGD_hook.py, ``_orthogonalize_gram_schmidt``): they read and write 3 columns, and 8 for each column behind.
    torch takes a QR decomposition from rank 3 on, which has about as many launches.
    """
    kernels = []
    for one in matrices:
        length, r = one.count * (one.rows if left else one.columns), one.rank
        passes_of_columns = 3 * r + 8 * (r * (r - 1) // 2)
        kernels.append(memory_bound(float(length * passes_of_columns * width), launches=2 * r + 4 * (r - 1)))
    return tuple(kernels)


def singular_values(one: Matrix, dtype: str, width: int) -> tuple[Kernel, ...]:
    """The singular value decomposition of a gradient by bidiagonalisation.

    Each of the k = min(n, m) steps reads the rest of the matrix for two products with vectors and reads and writes it
    for the update of its panel (LAPACK ``gebrd``: half of its FLOPs are products with vectors, which memory bounds), in
    4 kernels. The sum of the rests is k (n m - k (n + m) / 2 + k^2 / 3). Both sets of vectors are then formed by
    products of n k k and m k k multiplications.
    """
    n, m = one.rows, one.columns
    k = min(n, m)
    rests = k * (n * m - k * (n + m) / 2 + k * k / 3)
    return (
        memory_bound(3 * width * rests, launches=4 * k),
        matmul(n, k, k, precision=dtype),
        matmul(m, k, k, precision=dtype),
    )


def copied(found: Split, width: int) -> tuple[Kernel, ...]:
    """The other tensors, copied to one buffer: a kernel for all."""
    return passes(2 * found.elements * width) if found.others else ()


def copied_back(found: Split, width: int) -> tuple[Kernel, ...]:
    """The sum of the other tensors, divided by the number of ranks and copied back, a kernel for each."""
    nbytes = found.elements * width
    return (*passes(2 * nbytes), memory_bound(2 * nbytes, launches=found.others)) if found.others else ()
