"""Gradients are reduce-scattered: every rank gets the sum of its own shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.ops import Collective
from clustersim.workloads.data_parallel.buckets import Bucket, Reduction


@dataclass(frozen=True, slots=True)
class Hop:
    """A further reduction of one of *shards* shards: *kind* over the axis *over*, on *stream*.

    *last_only*: only in the last backward pass before an optimizer step; gradients are accumulated until then.
    """

    kind: str
    over: str
    shards: int
    stream: str
    name: str = "across"
    last_only: bool = False


def reduce_scatter(stream: str | None = None, across: Mapping[str, Sequence[Hop]] | None = None) -> Reduction:
    """One reduce-scatter for each bucket: on *stream* as soon as the bucket is full, or blocking if None.

    *across*, by the axis of a bucket: how the shard of a rank is reduced further, over other axes.
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
        before = bucket.name
        for hop in (across or {}).get(bucket.over, ()):
            if hop.last_only and not bucket.last:
                continue
            made = Collective(
                name=f"{bucket.name}.{hop.name}",
                action=bucket.action,
                kind=hop.kind,
                over=hop.over,
                nbytes=bucket.nbytes / hop.shards,
                stream=hop.stream if stream else "compute",
                after=(before,) if stream else (),
            )
            yield made
            before = made.name

    return reduce
