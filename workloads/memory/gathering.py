"""How sharded parameters are gathered: in fewer bits, or in the backward pass from a second copy in the node."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.kernel import memory_bound
from simulator.schedule import Collective, Compute, Op


@dataclass(frozen=True, slots=True)
class Gathering:
    """Gathers of ZeRO++ (`workloads.reductions.zeropp`), over *ranks* ranks.

    *element_bytes*: of a quantised element with its share of the scales; None: parameters travel as they are.
    *partition*: so many neighbours, which are a group of the axis *axis*, hold a second copy of all parameters, in
    shards, for the backward pass; 1: there is none.
    """

    element_bytes: float | None = None
    partition: int = 1
    axis: str = ""
    ranks: int = 1

    def second_copy(self, phase: str) -> bool:
        """True if a gather for *phase* comes from the second copy: all but those of a forward pass."""
        return self.partition > 1 and phase != "F"

    def quantised(
        self, gather: Collective, elements: float, reader: str
    ) -> tuple[tuple[Compute, ...], Collective, tuple[Op, ...]]:
        """*gather* in fewer bits: what precedes it, the gather itself, and what its reader waits for.

        A rank quantises its shard on the stream of the gather. The reader's stream, *reader*, dequantises all
        (DeepSpeed, runtime/zero/partition_parameters.py, ``AllGatherCoalescedHandle.wait``). *elements*: of the whole.
        """
        if self.element_bytes is None:
            return (), gather, ()
        coded, width = elements * self.element_bytes, gather.nbytes / elements
        shards = self.partition if gather.over == self.axis else self.ranks
        quantise = Compute(
            name=f"{gather.name}.quantise",
            stream=gather.stream,
            after=gather.after,
            kernels=(memory_bound((width + self.element_bytes) * elements / shards),),
        )
        dequantise = Compute(
            name=f"{gather.name}.dequantise",
            stream=reader,
            after=(gather.name,),
            kernels=(memory_bound((width + self.element_bytes) * elements),),
            frees={"buffers": coded},
        )
        held = {**gather.allocates, "buffers": gather.allocates.get("buffers", 0.0) + coded}
        return (quantise,), replace(gather, nbytes=coded, after=(), allocates=held), (dequantise,)


PLAIN = Gathering()
"""Parameters are gathered as they are, from all ranks that share them."""
