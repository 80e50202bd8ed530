"""The chain of a pipeline stage: what its layers keep and how long they take, in the terms of `chain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from workloads.memory.chains.chain import Chain, ChainLayer
from workloads.model import Layer


class LayerSeconds(NamedTuple):
    """Durations of a layer in s; *last*: of a forward pass whose output nobody reads."""

    forward: float
    backward: float
    last: float


def stage_chain(
    layers: Sequence[Layer], previous: Layer | None, samples: int, seconds: Mapping[str, LayerSeconds]
) -> Chain:
    """Return the chain of *layers*, a stage, for micro-batches of *samples*; *seconds* by name.

    *previous*: the layer before the stage. A layer keeps its input with its activations, so the tape of the one before
    has these bytes. The output of the stage is sent and not kept. Gradients are part of what a backward pass holds
    while it runs.
    """
    inputs = [one.input_bytes_of_next(samples) if one else 0.0 for one in (previous, *layers[:-1])]
    made = []
    for number, layer in enumerate(layers):
        own = seconds[layer.name]
        output = inputs[number + 1] if number + 1 < len(layers) else 0.0
        made.append(
            ChainLayer(
                layer.name,
                own.forward,
                own.backward,
                activation=output,
                tape=max(0.0, layer.activation_bytes(samples) - inputs[number]) + output,
                forward_extra=layer.transient_bytes("F", samples) - layer.buffer_bytes("F", samples),
                backward_extra=layer.transient_bytes("I", samples) - layer.buffer_bytes("I", samples),
                last_forward=own.last,
            )
        )
    return Chain(tuple(made), input_bytes=inputs[0])
