"""Fixed methods of recomputation as sequences over the layers of a stage.

*full*, *uniform* and *block* are those of Megatron-LM (``--recompute-granularity full --recompute-method``,
megatron/core/transformer/transformer_block.py, ``_checkpointed_forward``): they count the layers between embedding and
head, which are never run again.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.workloads.memory.chains.segments import advance
from clustersim.workloads.memory.chains.sequence import TAPE, TURN, ChainOperation, ChainSequence, Kind

FIXED = ("full", "uniform", "block")
"""The methods that follow from the number of layers alone."""


def fixed_sequence(method: str, repeatable: Several[bool], num_layers: int = 1) -> ChainSequence:
    """Return the sequence of *method*, of `FIXED`, for a stage of layers that are *repeatable* or not.

    ``uniform``: groups of *num_layers* layers keep the input of the group and are run again together; the last group
    may be smaller. ``block``: the first *num_layers* layers keep their input and are run again one by one. ``full``:
    groups of one layer. Raises `ScheduleError` if the stage has fewer than *num_layers* layers.

    >>> str(fixed_sequence("uniform", [True] * 3, 2))
    'F1c F2n F3c Loss BLoss F3e B3 F1e F2e B2 B1'
    """
    own = [number for number, one in enumerate(repeatable, 1) if one]
    if num_layers > max(1, len(own)):
        raise ScheduleError(f"num_layers = {num_layers} is more than the {len(own)} layers of a stage")
    if method == "block":
        groups = [[number] for number in own[:num_layers]]
    else:
        width = num_layers if method == "uniform" else 1
        groups = [own[begin : begin + width] for begin in range(0, len(own), width)]
    return _of_groups(groups, len(repeatable))


def saving_all(length: int) -> ChainSequence:
    """Return the sequence without recomputation of *length* layers."""
    return _of_groups([], length)


def swapping_all(length: int) -> ChainSequence:
    """Return the sequence of *length* layers in which all tapes but the last are copied to the host and back.

    A layer runs while the tape of the one before it is copied.

    >>> str(swapping_all(2))
    'F1e O1t F2e W1t Loss BLoss P1t B2 B1'
    """
    forward: list[ChainOperation] = []
    backward: list[ChainOperation] = []
    for number in range(1, length + 1):
        forward.append(ChainOperation(Kind.SAVE, number))
        backward.insert(0, ChainOperation(Kind.BACKWARD, number))
        if number > 1:
            forward.append(ChainOperation(Kind.WAIT, number - 1, TAPE))
            backward.insert(0, ChainOperation(Kind.PREFETCH, number - 1, TAPE))
        if number < length:
            forward.append(ChainOperation(Kind.OFFLOAD, number, TAPE))
    return ChainSequence((*forward, TURN, *backward))


def _of_groups(groups: Several[Several[int]], length: int) -> ChainSequence:
    """The sequence in which each of *groups*, of neighbouring layers, is run again as a whole."""
    begins = {group[0]: group for group in groups}
    forward: list[ChainOperation] = []
    backward: list[list[ChainOperation]] = []
    number = 1
    while number <= length:
        group = begins.get(number, [])
        if group:
            forward += advance(group[0], group[-1])
        else:
            group = [number]
            forward.append(ChainOperation(Kind.SAVE, number))
        again = [ChainOperation(Kind.SAVE, one) for one in group] if number in begins else []
        backward.append([*again, *(ChainOperation(Kind.BACKWARD, one) for one in reversed(group))])
        number = group[-1] + 1
    return ChainSequence((*forward, TURN, *(operation for part in reversed(backward) for operation in part)))
