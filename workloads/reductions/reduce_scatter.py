"""Gradients are reduce-scattered: every rank gets the sum of its own shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from simulator.schedule import Collective
from workloads.gradients.bucket import Bucket, Reduction


@dataclass(frozen=True, slots=True)
class Across:
    """One of *shards* shards is all-reduced over the axis *over*, on *stream*."""

    over: str
    shards: int
    stream: str


def reduce_scatter(stream: str | None = None, across: Mapping[str, Across] | None = None) -> Reduction:
    """One reduce-scatter for each bucket: on *stream* as soon as the bucket is full, or blocking if None.

    *across*, by the axis of a bucket: the shard of a rank is then all-reduced over another axis.
    """

    def reduce(bucket: Bucket) -> Iterator[Collective]:
        yield Collective(
            name=bucket.name,
            action=bucket.action,
            kind="reduce_scatter",
            over=bucket.over,
            nbytes=bucket.nbytes,
            stream=stream or "compute",
            after=(bucket.filled_by,) if stream else (),
            frees={"buffers": bucket.buffer} if bucket.buffer else {},
        )
        if across and bucket.over in across:
            then = across[bucket.over]
            yield Collective(
                name=f"{bucket.name}.across",
                action=bucket.action,
                kind="all_reduce",
                over=then.over,
                nbytes=bucket.nbytes / then.shards,
                stream=then.stream if stream else "compute",
                after=(bucket.name,) if stream else (),
            )

    return reduce
