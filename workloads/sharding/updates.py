"""How the ranks of ZeRO's stages 1 and 2 get the parameters that others have updated.

DeepSpeed and Megatron-LM gather shards of equal size. InternLM assigns whole tensors to ranks, each to the rank with
the fewest elements so far, and every rank broadcasts its own (InternLM/InternLM at 20fe5ac2, solver/optimizer/
hybrid_zero_optim.py, ``_partition_param_list`` and ``broadcast_params``): as many broadcasts as ranks that have any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace

from simulator.errors import ScenarioError
from simulator.schedule import Collective, Compute, Op, Program
from simulator.schedule.program import Block, TemplatedOps
from workloads.gradients.bucket import Weights
from workloads.gradients.reduce import updated_stages
from workloads.operators.parameter import REPLICAS

GATHER_ELEMENTS = 500_000_000
"""DeepSpeed, runtime/zero/config.py: ``allgather_bucket_size`` of 5e8 elements."""

MOST_GATHERS = 10_000
"""All-gathers of a rank after an optimizer step at most: 5e12 parameters in one rank, more than any GPU holds."""


def gathered_ahead(program: Program, stages: Mapping[int, Sequence[Weights]], width: int, over: str) -> Program:
    """Return *program* with an all-gather of each layer at its begin; the layer's first forward pass waits for it."""
    own = [weights for stage in stages.values() for weights in stage if weights.parameters]
    if not own:
        return program
    gathers = tuple(
        Collective(
            name=f"{weights.name}.gather{suffix(over)}",
            kind="all_gather",
            over=over,
            nbytes=weights.gathered(width),
            stream="dp.gather",
        )
        for weights in own
    )
    awaited = {weights.name: gather.name for weights, gather in zip(own, gathers, strict=True)}

    def awaiting(op: Op) -> Op:
        name = awaited.pop(op.layer, None) if isinstance(op, Compute) and op.layer else None
        return op if name is None else replace(op, after=(*op.after, name))

    blocks = [Block(gathers)]
    for block in program.blocks:
        first = any(op.layer in awaited for op in block.ops) if awaited else False
        blocks.append(Block(tuple(map(awaiting, block.materialise().ops)), block.micro_batch) if first else block)
    return replace(program, ops=TemplatedOps(blocks))


def gathered_after(
    program: Program, stages: Mapping[int, Sequence[Weights]], width: int, over: str, share: float = 1.0
) -> Program:
    """Return *program* with all-gathers of the updated parameters, or a *share* of them, after each optimizer step."""
    updates = updated_stages(program)

    def change(op: Op) -> Iterator[Op]:
        yield op
        if op.name in updates:
            own = [weights for stage in updates[op.name] for weights in stages.get(stage, ())]
            elements = sum(weights.parameters for weights in own)
            _check_gathers(elements)
            each = sum(weights.gathered(width) for weights in own) / max(1, elements)
            for number, begin in enumerate(range(0, elements, GATHER_ELEMENTS)):
                nbytes = min(GATHER_ELEMENTS, elements - begin) * each * share
                name = f"{op.name}.gather{number}{suffix(over)}"
                yield Collective(name=name, action=op.action, kind="all_gather", over=over, nbytes=nbytes)

    return program.map_ops(change)


def broadcast_after(
    program: Program, stages: Mapping[int, Sequence[Weights]], width: int, over: str, ranks: int
) -> Program:
    """Return *program* with a broadcast by each of *ranks* owners after each optimizer step.

    Every broadcast starts from coordinate 0: the ranks of a ring are equal.
    """
    updates = updated_stages(program)

    def change(op: Op) -> Iterator[Op]:
        yield op
        if op.name in updates:
            own = [weights for stage in updates[op.name] for weights in stages.get(stage, ())]
            counts = owned_elements([tensor.count for weights in own for tensor in weights.tensors], ranks)
            for number, elements in enumerate(counts):
                name = f"{op.name}.broadcast{number}{suffix(over)}"
                nbytes = float(elements * width)
                yield Collective(name=name, action=op.action, kind="broadcast", over=over, nbytes=nbytes)

    return program.map_ops(change)


def owned_elements(tensors: Sequence[int], ranks: int) -> list[int]:
    """Return the elements of each rank that owns any of *tensors* (elements of each), the largest given out first.

    >>> owned_elements([5, 3, 3, 1], 2), owned_elements([5, 3], 4)
    ([6, 6], [5, 3])
    """
    loads = [(0, rank) for rank in range(ranks)]
    heapify(loads)
    held = [0] * ranks
    for count in sorted(tensors, reverse=True):
        _, rank = loads[0]
        held[rank] += count
        heapreplace(loads, (held[rank], rank))
    return [elements for elements in held if elements]


def _check_gathers(elements: int) -> None:
    if elements > MOST_GATHERS * GATHER_ELEMENTS:
        raise ScenarioError(
            f"a rank gathers {elements:.3g} updated parameters, {GATHER_ELEMENTS:.3g} at a time; at most "
            f"{MOST_GATHERS:,} gathers are simulated: divide the model further with tp or pp, or take stage 3"
        )


def suffix(axis: str) -> str:
    """Return the end of the names of gathers over *axis*; empty for the axis of the replicas."""
    return "" if axis == REPLICAS else f" over {axis}"
