"""What a planning method reads: a chain of layers with their costs, and a machine with levels of bandwidth.

Methods are pure functions of these types. `scenarios.search.planning_problem` makes them from a scenario. A
`PipelineChain` is divided into stages, so it has what crosses a cut and what replicas hold. That of checkpointing
(`workloads.memory.chain.Chain`) is one stage on one GPU, and has what each operation of it keeps and frees.

The bytes that a stage holds on each of its GPUs, for the methods with memory as a constraint.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.reading.dataclass import dataclass

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PipelineLayer:
    """One layer: the costs of a micro-batch on one GPU, or on one of the GPUs that share the layer.

    *forward* and *backward* are s, with the exchanges of tensor parallelism in them. *output_bytes* cross a cut behind
    the layer, forward, and as many come back. *gradient_bytes*: what replicas sum. *parameter_bytes*: one version of
    the weights. *state_bytes*: weights, gradients and optimizer states. *activation_bytes* are kept from forward to
    backward. With recomputation, *recompute* s are added and only *recomputed_bytes* are kept. *end*: an embedding or
    a head, which an even division into stages does not count. *channelwise*: each channel of its output needs only
    that channel of its input, as in an activation, a norm or a pooling. *gathered*: all tensor ranks hold its whole
    output, and its times include the exchanges for that.
    """

    name: str
    forward: float
    backward: float
    output_bytes: float = 0.0
    gradient_bytes: float = 0.0
    parameter_bytes: float = 0.0
    state_bytes: float = 0.0
    activation_bytes: float = 0.0
    recompute: float = 0.0
    recomputed_bytes: float = 0.0
    end: bool = False
    channelwise: bool = False
    gathered: bool = False


@dataclass(frozen=True)
class PipelineChain:
    """*layers* in order of the forward pass, priced for *micro_batch_size* samples on one of *tp* tensor ranks."""

    layers: tuple[PipelineLayer, ...]
    micro_batch_size: int = 1
    tp: int = 1

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def outputs(self) -> Floats:
        """The bytes that cross a cut behind each layer; 0 behind the last one."""
        return np.array([*(layer.output_bytes for layer in self.layers[:-1]), 0.0])

    def total(self, column: str) -> Floats:
        """Return the running sum of *column* over the layers, of length ``len(chain) + 1``, from 0.

        The sum over layers i to j - 1 is ``total[j] - total[i]``.
        """
        if column not in self._totals:
            self._totals[column] = np.cumsum([0.0, *(getattr(layer, column) for layer in self.layers)])
        return self._totals[column]

    _totals: dict[str, Floats] = field(init=False, repr=False, compare=False, default_factory=dict)

    def divided(self, ranks: int) -> PipelineChain:
        """Return the chain with each layer divided over *ranks* by its output channels, without loss of efficiency.

        That is for measured layers, of which no other time is known. Each rank keeps its part of the output only.
        """
        costs = ("forward", "backward", "gradient_bytes", "parameter_bytes", "state_bytes", "recompute")
        layers = (
            replace(layer, **{name: getattr(layer, name) / ranks for name in costs}, gathered=False)
            for layer in self.layers
        )
        return PipelineChain(tuple(layers), self.micro_batch_size, self.tp * ranks)


@dataclass(frozen=True, slots=True)
class Level:
    """*count* units, each a machine of the level below (or a GPU), each with *bandwidth* bytes/s to the others."""

    count: int
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Machine:
    """*levels* of a cluster, innermost first: GPUs of a node, then nodes. *memory_bytes*: what a GPU holds."""

    levels: tuple[Level, ...]
    memory_bytes: float = float("inf")

    @property
    def gpus(self) -> int:
        """The number of all GPUs."""
        return prod(level.count for level in self.levels)

    def message_bandwidth(self, gpus: int) -> float:
        """Return bytes/s of each of so many neighbouring *gpus* if each sends as far as the group reaches.

        >>> machine = Machine((Level(8, 300e9), Level(4, 200e9)))
        >>> machine.message_bandwidth(8) / 1e9, machine.message_bandwidth(16) / 1e9
        (300.0, 25.0)
        """
        return self._bandwidth(gpus, 1, shared_by_all=True)

    def ring_bandwidth(self, ranks: int, stride: int = 1) -> float:
        """Return bytes/s along a ring of *ranks*, every *stride*-th GPU, if the rings beside it are busy too.

        A ring enters and leaves each unit once, so only rings share the links of a unit.

        >>> machine = Machine((Level(8, 300e9), Level(4, 200e9)))
        >>> machine.ring_bandwidth(16) / 1e9, machine.ring_bandwidth(4, 8) / 1e9, machine.ring_bandwidth(2, 2) / 1e9
        (200.0, 25.0, 300.0)
        """
        return self._bandwidth(ranks, stride, shared_by_all=False)

    def _bandwidth(self, ranks: int, stride: int, *, shared_by_all: bool) -> float:
        least, inside = float("inf"), 1
        for level in self.levels:
            if ranks * stride > inside and level.count > 1:
                least = min(least, level.bandwidth / (inside if shared_by_all else min(stride, inside)))
            inside *= level.count
        return least


@dataclass(frozen=True, slots=True)
class Stage:
    """*layers* consecutive layers on *replicas* x *tp* GPUs; *recompute*: they run their forward pass twice.

    *gpus*: the numbers of the GPUs of the replicas, if they are not simply the next ones.
    """

    layers: int
    replicas: int = 1
    tp: int = 1
    recompute: bool = False
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a *method* answers: *stages*, and *seconds* a sample in the steady state as the method estimates them.

    *pipelined*: each stage has GPUs of its own. If not, the stages run one after the other on the same GPUs.
    """

    method: str
    stages: tuple[Stage, ...]
    seconds: float
    micro_batch_size: int = 1
    pipelined: bool = True

    @property
    def replicas(self) -> str:
        """The replicas of each stage as PipeDream writes them: ``15-1``.

        >>> Plan("pipedream", (Stage(3, 15), Stage(1)), 1.0).replicas
        '15-1'
        """
        return "-".join(str(stage.replicas) for stage in self.stages)

    @property
    def gpus(self) -> int:
        """The number of GPUs that it uses."""
        each = [stage.replicas * stage.tp for stage in self.stages]
        return sum(each) if self.pipelined else max(each)


def held_bytes(
    chain: PipelineChain, i: int, j: int, in_flight: int, *, recompute: bool = False, versions: int = 1
) -> float:
    """Return the bytes of the layers i to j - 1: states, *versions* of the weights, activations of *in_flight*.

    *in_flight*: the micro-batches that have run forward and not yet backward. With *recompute* the activations of one
    layer at a time are there again.
    """
    states, weights = chain.total("state_bytes"), chain.total("parameter_bytes")
    kept = chain.total("recomputed_bytes" if recompute else "activation_bytes")
    again = max(layer.activation_bytes for layer in chain.layers[i:j]) if recompute else 0.0
    held = states[j] - states[i] + (versions - 1) * (weights[j] - weights[i]) + in_flight * (kept[j] - kept[i]) + again
    return float(held)
