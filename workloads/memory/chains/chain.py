"""A heterogeneous chain: the seconds and bytes of each layer; and the chain of a pipeline stage.

The model and its letters are those of Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova 2019, "Optimal checkpointing
for heterogeneous chains: how to train deep neural networks with limited memory" (arXiv:1911.13214, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.workloads.operators.model import Layer


@dataclass(frozen=True, slots=True)
class ChainLayer:
    """Layer l of a chain. Times in seconds, sizes in bytes.

    *forward* (u_f) and *backward* (u_b): durations. *activation* (a_l): the output that layer l + 1 reads. *tape*
    (the paper's a_l with a bar): all that the forward pass saves for the backward pass of the layer. It includes the
    output and excludes the input a_(l-1). *gradient* (delta_l): the gradient of the output. *forward_extra* (o_f) and
    *backward_extra* (o_b): held only while the operation runs. *last_forward*: duration of a forward pass that saves
    all and whose output nobody reads; it may stop early. Default: that of the forward pass.
    """

    name: str
    forward: float
    backward: float
    activation: float
    tape: float
    gradient: float = 0.0
    forward_extra: float = 0.0
    backward_extra: float = 0.0
    last_forward: float | None = None

    def __post_init__(self) -> None:
        if self.tape < self.activation:
            raise ScheduleError(
                f"layer {self.name}: the tape of {self.tape:g} B is less than the activation of {self.activation:g} B "
                "that it includes"
            )

    @property
    def final_forward(self) -> float:
        """Seconds of a forward pass that saves all and whose output nobody reads."""
        return self.forward if self.last_forward is None else self.last_forward


@dataclass(frozen=True, slots=True)
class Chain:
    """*layers* in order of the forward pass; layer l is ``layers[l - 1]``, as the paper counts from 1.

    *input_bytes* (a_0): the input of layer 1. It is held from the first forward pass to the backward pass of layer 1.
    *input_gradient* (delta_0): its gradient, if that is computed.
    """

    layers: tuple[ChainLayer, ...]
    input_bytes: float = 0.0
    input_gradient: float = 0.0

    def __len__(self) -> int:
        return len(self.layers)

    def activation(self, number: int) -> float:
        """Bytes of a_number: the output of layer *number*, or the input of the chain for 0."""
        return self.layers[number - 1].activation if number else self.input_bytes

    def gradient(self, number: int) -> float:
        """Bytes of the gradient of a_number."""
        return self.layers[number - 1].gradient if number else self.input_gradient

    @property
    def seconds(self) -> float:
        """Duration of one forward and one backward pass of every layer: without recomputation."""
        return sum(layer.forward + layer.backward for layer in self.layers)

    @classmethod
    def of(
        cls,
        activations: Sequence[float],
        tapes: Sequence[float],
        forward: Sequence[float] | float = 1.0,
        backward: Sequence[float] | float = 1.0,
        gradients: Sequence[float] | float = 0.0,
    ) -> Chain:
        """Build from columns: *activations* a_0 ... a_L, and an entry a layer (or one number) for the others.

        a_0 is not counted, as the paper's programme does not count it.

        >>> len(Chain.of([1, 1, 1], [2, 2]))
        2
        """
        count = len(tapes)
        if len(activations) != count + 1:
            raise ScheduleError(
                f"{count} layers have {count + 1} activations a_0 ... a_{count}, not {len(activations)}"
            )
        columns = (_column(values, count) for values in (forward, backward, gradients))
        rows = zip(activations[1:], tapes, *columns, strict=True)
        return cls(
            tuple(ChainLayer(str(number), f, b, a, tape, g) for number, (a, tape, f, b, g) in enumerate(rows, 1)),
        )


def _column(values: Sequence[float] | float, count: int) -> Sequence[float]:
    return [values] * count if isinstance(values, (int, float)) else values


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
