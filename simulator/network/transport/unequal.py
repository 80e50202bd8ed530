"""An all-to-all with unequal blocks: the steps of equal blocks, divided where a block is complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.errors import SimulatorError
from simulator.network.step import Step


def unequal(steps: Sequence[Step], per_peer: Sequence[float]) -> list[Step]:
    """Return *steps*, whose transfers carry the block for their receiver, with ``per_peer[j]`` bytes for receiver j.

    A step becomes one step for each size of block: all transfers send the bytes of the smallest block, then transfers
    with larger blocks continue, and so on. The further steps pay no latency. A transfer of no bytes is left out. Raises
    `SimulatorError` for an algorithm that forwards blocks.
    """
    return [part for step in steps for part in _divided(step, per_peer)]


def _divided(step: Step, per_peer: Sequence[float]) -> Iterator[Step]:
    if step.repeat != 1 or step.pipelined or step.coupled:
        raise SimulatorError("an all-to-all with unequal blocks needs an algorithm that sends each block directly")
    sent = 0.0
    for size in sorted({per_peer[receiver] for _, receiver in step.transfers if per_peer[receiver]}):
        transfers = tuple(transfer for transfer in step.transfers if per_peer[transfer[1]] >= size)
        yield replace(step, transfers=transfers, nbytes=size - sent, blocks=None, continues=sent > 0)
        sent = size
