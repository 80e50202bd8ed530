"""A compressed reduction of a bucket: kernels that encode, messages, and kernels that decode.

A method says what it does with a bucket (`Code`). Here its ops are placed as torch places those of a communication
hook: the hook runs when the bucket is full, so that its first kernels are on the stream of the backward pass. What
follows a message runs on a stream of its own, beside the backward pass (torch, csrc/distributed/c10d/reducer.cpp,
``run_comm_hook``; the callbacks of a CUDA future have streams from a pool, ATen/core/ivalue_inl.h). A hook that
synchronises with the GPU blocks the backward pass until it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.errors import ScenarioError
from simulator.kernel import Kernel
from simulator.schedule import Collective, Compute, Op
from workloads.gradients.bucket import Bucket, Reduction

BLOCKING = "compute"
"""The stream of the backward pass; a reduction on it blocks."""

ENCODE, DECODE = "encode", "decode"
"""How the names of the ops of a compressed reduction end, before the number of their round."""


@dataclass(frozen=True, slots=True)
class Message:
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
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """What a method does with a bucket: *rounds*, then the kernels that *decode*.

    *sent*: bytes of the encoded gradients of one rank. *held*: bytes from the first kernel to the last. *kept*: bytes
    from step to step, such as the error that is fed back. *synchronous*: the backward pass waits for the last kernel.
    *beside*: all kernels are on the stream of the messages, as DeepSpeed has them, not as torch places a hook's.
    *warm_up*: the share of steps of a run that are not compressed.
    """

    rounds: tuple[Round, ...]
    decode: tuple[Kernel, ...]
    sent: float
    held: float
    kept: float = 0.0
    synchronous: bool = False
    beside: bool = False
    warm_up: float = 0.0


@dataclass(frozen=True)
class Compressed:
    """A reduction by *reduce* that encodes a bucket by *code*."""

    reduce: Reduction
    code: Callable[[Bucket], Code]

    def __call__(self, bucket: Bucket) -> Iterable[Op]:
        """The ops that reduce *bucket*."""
        return self.reduce(bucket)


def wrapped(reduction: Reduction, reduce: Reduction) -> Reduction:
    """*reduce*, which adds something to *reduction*, and keeps what that keeps."""
    return replace(reduction, reduce=reduce) if isinstance(reduction, Compressed) else reduce


def compressed(
    reduction: Reduction,
    method: str,
    code: Callable[[Bucket, str], Code],
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
            raise ScenarioError(f"parallelism.data.compression.method: {method} is not possible here: {why}")
        return ops[0]

    def coded(bucket: Bucket) -> Code:
        return code(bucket, plain(bucket).kind)

    def reduce(bucket: Bucket) -> Iterator[Op]:
        return _ops(reduction, bucket, coded(bucket), plain(bucket))

    return Compressed(reduce, coded)


def _all_messages(code: Code) -> Iterator[Message]:
    for one in code.rounds:
        yield from one.messages


def _ops(reduction: Reduction, bucket: Bucket, code: Code, plain: Collective) -> Iterator[Op]:
    """Yield the ops of *code*; *plain*: the collective of *reduction* for *bucket*."""
    blocking = plain.stream == BLOCKING
    later = BLOCKING if blocking or code.synchronous else plain.stream if code.beside else f"{plain.stream}.hook"
    first = later if code.beside else BLOCKING
    after = plain.after if code.beside else ()
    for number, one in enumerate(code.rounds, start=1):
        name = f"{bucket.name}.{ENCODE}{number}"
        held = {"buffers": code.held} if number == 1 and code.held else {}
        yield Compute(
            name=name, kernels=one.kernels, stream=later if number > 1 else first, after=after, allocates=held
        )
        ops = list(_messages(reduction, replace(bucket, filled_by=name), one.messages, plain, number))
        yield from ops
        after = () if blocking else (ops[-1].name,)
    freed = bucket.buffer + code.held
    yield Compute(
        name=f"{bucket.name}.{DECODE}",
        kernels=code.decode,
        stream=later,
        after=after,
        frees={"buffers": freed} if freed else {},
    )


def _messages(
    reduction: Reduction, bucket: Bucket, messages: Sequence[Message], plain: Collective, number: int
) -> Iterator[Op]:
    """Yield the collectives of a round, which follow ``bucket.filled_by``."""
    for place, message in enumerate(messages):
        name = f"{bucket.name}.{number}.{place}"
        if message.kind:
            after = (bucket.filled_by,) if plain.stream != BLOCKING else ()
            over = message.over or plain.over
            yield replace(plain, name=name, kind=message.kind, over=over, nbytes=message.nbytes, after=after, frees={})
        else:
            yield from reduction(replace(bucket, name=name, nbytes=message.nbytes, buffer=0.0))
