"""An all-to-all with unequal blocks: the steps of equal blocks, divided where a block is complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.errors import SimulatorError
from simulator.network.step import Step
from simulator.schedule.ops import BySender, PerPeer


def unequal(steps: Sequence[Step], per_peer: PerPeer) -> list[Step]:
    """Return *steps*, whose transfers carry the block for their receiver, with ``per_peer[j]`` bytes for receiver j.

    With `BySender`, sender i sends ``per_peer.nbytes[i]`` bytes to every receiver.

    A step becomes one step for each size of block: all transfers send the bytes of the smallest block, then transfers
    with larger blocks continue, and so on. The further steps pay no latency. A transfer of no bytes is left out. Raises
    `SimulatorError` for an algorithm that forwards blocks.
    """
    end, nbytes = (0, per_peer.nbytes) if isinstance(per_peer, BySender) else (1, per_peer)
    return [part for step in steps for part in _divided(step, nbytes, end)]


def _divided(step: Step, nbytes: Sequence[float], end: int) -> Iterator[Step]:
    if step.repeat != 1 or step.pipelined or step.coupled:
        raise SimulatorError("an all-to-all with unequal blocks needs an algorithm that sends each block directly")
    sent = 0.0
    for size in sorted({nbytes[transfer[end]] for transfer in step.transfers if nbytes[transfer[end]]}):
        transfers = tuple(transfer for transfer in step.transfers if nbytes[transfer[end]] >= size)
        yield replace(step, transfers=transfers, nbytes=size - sent, blocks=None, continues=sent > 0)
        sent = size
