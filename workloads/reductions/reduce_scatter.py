"""Gradients are reduce-scattered: every rank gets the sum of its own shard."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.schedule import Collective
from workloads.gradients.bucket import Bucket, Reduction


def reduce_scatter(stream: str | None = None, across: tuple[str, str, int] | None = None) -> Reduction:
    """One reduce-scatter for each bucket: on *stream* as soon as the bucket is full, or blocking if None.

    *across* (stream, axis, shards): the shard of a rank is then all-reduced over that axis, on that stream.
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
        if across is not None:
            second, axis, shards = across
            yield Collective(
                name=f"{bucket.name}.across",
                action=bucket.action,
                kind="all_reduce",
                over=axis,
                nbytes=bucket.nbytes / shards,
                stream=second if stream else "compute",
                after=(bucket.name,) if stream else (),
            )

    return reduce
