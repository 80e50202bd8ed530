"""Gradients are all-reduced: every rank gets the whole sum."""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.simulator.schedule.ops import Collective
from clustersim.workloads.data_parallel.buckets import Bucket, Reduction


def all_reduce(stream: str | None = None, over: str | None = None) -> Reduction:
    """One all-reduce for each bucket: on *stream* as soon as the bucket is full, or blocking if None.

    *over*: another axis than that of the bucket.
    """

    def reduce(bucket: Bucket) -> Iterator[Collective]:
        yield Collective(
            name=bucket.name,
            action=bucket.action,
            kind="all_reduce",
            over=over or bucket.over,
            nbytes=bucket.nbytes,
            stream=stream or "compute",
            after=(bucket.filled_by,) if stream else (),
            frees={"buffers": bucket.buffer} if bucket.buffer else {},
        )

    return reduce
