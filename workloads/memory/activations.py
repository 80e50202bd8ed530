"""Activations are held from a layer's forward pass to its backward pass; recomputation shortens this time.

F allocates the bytes that the layer keeps and B frees them; what a phase holds only while it runs, it allocates and
frees itself. In a split backward pass I frees what W does not need. W needs the inputs of products and the gradients of
their outputs: 32 s b h bytes in 16 bits for a layer of a transformer (Qi et al. 2024, arXiv:2401.10241, table 1). A
recomputed layer keeps only its input, 2 s b h bytes (Korthikanti et al. 2022, arXiv:2205.05198, section 5), and nothing
if the layer before it was recomputed just before; R allocates the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from simulator.schedule import Compute, Op, Program
from workloads.model import Layer, Model

Place = tuple[int, int | None, str]
"""(stage, micro-batch, layer)."""

Amounts = Mapping[str, tuple[float, float]]
"""By phase: (bytes that its first op allocates, bytes that its last op frees)."""


def with_activations(program: Program, model: Model, micro_batch_size: int) -> Program:
    """*program* with ops that allocate and free the activations of *model*'s layers.

    A phase of a layer may be several ops: the first allocates, the last frees.
    """
    memory = _Memory(model, micro_batch_size)
    return program.by_micro_batch(lambda part: _with_activations(part, memory))


def _with_activations(program: Program, memory: _Memory) -> Program:
    ops = list(program.ops)
    passes = _passes(ops)
    for place, phases in passes.items():
        before = memory.before(place)
        handed = "R" in phases and before in passes and _recomputed_before(passes[before], phases)
        amounts = memory.amounts(place[2], _kind(memory, place[2], phases, ops), handed, "W" in phases)
        for phase, indices in phases.items():
            allocated, freed = amounts[phase]
            for index in indices:
                first, last = index == indices[0], index == indices[-1]
                ops[index] = _holding(ops[index], allocated if first else 0.0, freed if last else 0.0)
    return program.with_ops(ops)


class _Memory:
    """The bytes of activations of a model's layers, cached."""

    def __init__(self, model: Model, micro_batch_size: int) -> None:
        self.layers = {layer.name: layer for layer in model.layers}
        self.previous = {two.name: one for one, two in zip(model.layers, model.layers[1:], strict=False)}
        self.micro_batch_size = micro_batch_size
        self._known: dict[tuple[str, str, bool, bool], Amounts] = {}

    def before(self, place: Place) -> Place | None:
        """The layer whose output is the input of the one at *place*."""
        previous = self.previous.get(place[2])
        return (*place[:2], previous.name) if previous else None

    def amounts(self, layer: str, recomputed: str, handed: bool, split: bool) -> Amounts:
        """By phase. *recomputed*: none, selective or full. *handed*: its input comes from another R."""
        key = layer, recomputed, handed, split
        if key not in self._known:
            previous = None if handed else self.previous.get(layer)
            self._known[key] = _amounts(self.layers[layer], previous, recomputed, split, self.micro_batch_size)
        return self._known[key]


def _amounts(layer: Layer, previous: Layer | None, recomputed: str, split: bool, samples: int) -> Amounts:
    every = layer.activation_bytes(samples)
    kept = every
    if recomputed == "selective":
        kept -= layer.recomputable_bytes(samples)
    if recomputed == "full":
        kept = previous.input_bytes_of_next(samples) if previous else 0.0
    again = max(0.0, every - kept)
    held, needed = kept + again, layer.weight_bytes(samples) if split else 0.0
    forward, backward = layer.transient_bytes("F", samples), layer.transient_bytes("I", samples)
    # gradients replace activations; if these are fewer bytes, I allocates the difference
    halves = {"I": (backward + max(0.0, needed - held), backward + max(0.0, held - needed)), "W": (0.0, needed)}
    return {"F": (kept + forward, forward), "R": (again + forward, forward), "B": (backward, held + backward), **halves}


def _passes(ops: Iterable[Op]) -> dict[Place, dict[str, list[int]]]:
    """The indices of the ops of each phase of each layer, for each micro-batch."""
    found: defaultdict[Place, dict[str, list[int]]] = defaultdict(dict)
    for index, op in enumerate(ops):
        if op.action and op.layer and op.action.phase in "FRBIW":
            phase, stage, micro_batch = op.action
            found[stage, micro_batch, op.layer].setdefault(phase, []).append(index)
    return dict(found)


def _recomputed_before(previous: Mapping[str, list[int]], phases: Mapping[str, list[int]]) -> bool:
    return "R" in previous and previous["R"][-1] < phases["R"][0]


def _kind(memory: _Memory, layer: str, phases: Mapping[str, list[int]], ops: list[Op]) -> str:
    """How much of the forward pass R runs again: full or selective; none if there is no R."""
    if "R" not in phases:
        return "none"
    computes = (op for op in map(ops.__getitem__, phases["R"]) if isinstance(op, Compute))
    count, own = sum(len(op.kernels) for op in computes), memory.layers[layer]
    whole = len(own.forward(memory.micro_batch_size)) - own.unneeded_forward(memory.micro_batch_size)
    return "full" if count >= whole else "selective"


def _holding(op: Op, allocated: float, freed: float) -> Op:
    """*op* with these bytes of activations allocated and freed."""
    if (op.allocates.get("activations", 0.0), op.frees.get("activations", 0.0)) == (allocated, freed):
        return op
    return replace(op, allocates=_with(op.allocates, allocated), frees=_with(op.frees, freed))


def _with(given: Mapping[str, float], nbytes: float) -> Mapping[str, float]:
    """*given* with *nbytes* of activations in place of its own."""
    others = {category: held for category, held in given.items() if category != "activations"}
    return {**others, "activations": nbytes} if nbytes else others
