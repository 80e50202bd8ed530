"""Messages that cannot be summed on the way: every rank gathers those of all, or ranks sum parts of them.

An all-gather of p messages needs one round; each rank receives p - 1 messages. With an all-to-all each rank gets one
part of every message and sums these parts; it encodes its part of the sum again, and all ranks gather the parts. So a
rank sends and receives about two messages, whatever p is. A reduce-scatter needs the all-to-all alone. A server gets
the messages as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from simulator.kernel import Kernel
from workloads.gradients.bucket import Bucket
from workloads.gradients.code_kernels import error_added, error_kept, ranks_of
from workloads.gradients.compressed import Code, Message, Round

Exchange = Literal["all_gather", "all_to_all"]


@dataclass(frozen=True)
class Quantiser:
    """*size*: bytes of the message of a bucket. *encode*: its kernels. *total*: those that sum so many messages."""

    size: Callable[[Bucket], float]
    encode: Callable[[Bucket], tuple[Kernel, ...]]
    total: Callable[[Bucket, int], tuple[Kernel, ...]]

    def code(self, bucket: Bucket, kind: str, exchange: Exchange, *, error_feedback: bool) -> Code:
        """How *bucket* is summed in place of a collective of *kind*; an all-reduce by *exchange*."""
        size = self.size(bucket)
        encode = self.encode(bucket)
        if error_feedback:
            encode = (error_added(bucket), *encode, *self.total(bucket, 1), error_kept(bucket))
        kept = bucket.nbytes if error_feedback else 0.0
        if kind == "reduce":
            return Code((Round(encode, (Message(size),)),), (), sent=size, held=size, kept=kept)
        ranks = ranks_of(bucket)
        part = replace(bucket, nbytes=bucket.nbytes / ranks)
        if kind == "reduce_scatter":
            scattered = Round(encode, (Message(size, "all_to_all"),))
            return Code((scattered,), self.total(part, ranks), sent=size, held=2 * size, kept=kept)
        if exchange == "all_gather":
            gathered = Round(encode, (Message(ranks * size, "all_gather"),))
            return Code((gathered,), self.total(bucket, ranks), sent=size, held=(1 + ranks) * size, kept=kept)
        again = (*self.total(part, ranks), *self.encode(part))
        rounds = (
            Round(encode, (Message(size, "all_to_all"),)),
            Round(again, (Message(ranks * self.size(part), "all_gather"),)),
        )
        held = 2 * size + part.nbytes + ranks * self.size(part)
        return Code(rounds, self.total(bucket, 1), sent=size, held=held, kept=kept)
