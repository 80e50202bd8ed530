"""Activations are held from a layer's forward pass to its backward pass; recomputation shortens this time.

F allocates the bytes that the layer keeps and B frees them; what a phase holds only while it runs, it allocates and
frees itself. In a split backward pass I frees what W does not need. W needs the inputs of products and the gradients of
their outputs: 32 s b h bytes in 16 bits for a layer of a transformer (Qi et al. 2024, arXiv:2401.10241, table 1). A
recomputed layer keeps only its input, 2 s b h bytes (Korthikanti et al. 2022, arXiv:2205.05198, section 5).

A forward pass may run any number of times (F, then R). Only the last run before the backward pass saves all: F^e in
the notation of Rotor (Beaumont et al. 2019, arXiv:1911.13214). Any other run keeps its input if the next run reads it
again (F^c), and nothing if the layer before is run again just before that (F^n).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.records import changed
from clustersim.workloads.operators.model import Layer, Model

Place = tuple[int, int | None, str]
"""(stage, micro-batch, layer)."""


def with_activations(program: Program, model: Model, micro_batch_size: int) -> Program:
    """*program* with ops that allocate and free the activations of *model*'s layers.

    A phase of a layer may be several ops: the first allocates, the last frees.
    """
    memory = _ActivationMemory(model, micro_batch_size)
    return program.by_micro_batch(lambda part: _with_activations(part, memory))


def _with_activations(program: Program, memory: _ActivationMemory) -> Program:
    ops = list(program.ops)
    passes = _passes(ops)
    for place, own in passes.items():
        before = memory.before(place)
        changes = memory.changes(place[2], own, passes.get(before) if before else None, ops)
        for indices, (allocated, freed) in changes:
            for index in indices:
                first, last = index == indices[0], index == indices[-1]
                ops[index] = _holding(ops[index], allocated if first else 0.0, freed if last else 0.0)
    return program.with_ops(ops)


@dataclass(slots=True)
class _Passes:
    """The indices of the ops of a layer for one micro-batch.

    *forward*: those of each run of the forward pass, F and then each R. *backward*: those of each other phase.
    """

    forward: list[list[int]] = field(default_factory=list)
    backward: dict[str, list[int]] = field(default_factory=dict)

    def handed(self, run: int, before: _Passes | None) -> bool:
        """True if the layer *before* makes the input of that *run* anew, after the run before it."""
        if before is None or not run:
            return False
        begin, end = self.forward[run - 1][-1], self.forward[run][0]
        return any(begin < other[-1] < end for other in before.forward)


class _ActivationMemory:
    """The bytes of activations of a model's layers."""

    def __init__(self, model: Model, micro_batch_size: int) -> None:
        self._layers = {layer.name: layer for layer in model.layers}
        self._previous = {two.name: one for one, two in zip(model.layers, model.layers[1:], strict=False)}
        self._samples = micro_batch_size
        self._known: dict[str, _Sizes] = {}

    def before(self, place: Place) -> Place | None:
        """The layer whose output is the input of the one at *place*."""
        previous = self._previous.get(place[2])
        return (*place[:2], previous.name) if previous else None

    def changes(self, name: str, own: _Passes, before: _Passes | None, ops: Sequence[Op]) -> list[Change]:
        """The changes of the passes of layer *name*; *before*: the passes of the layer before it."""
        if name not in self._known:
            self._known[name] = _sizes(self._layers[name], self._previous.get(name), self._samples)
        sizes = self._known[name]
        part = len(own.forward) > 1 and not self._whole(name, own.forward[-1], ops)
        forward, held = _partly(sizes, own) if part else _wholly(sizes, own, before)
        return [*forward, *_backward(sizes, own, held)]

    def _whole(self, name: str, run: Sequence[int], ops: Sequence[Op]) -> bool:
        """True if *run* has all kernels of the forward pass that the backward pass needs, not those of a part."""
        layer = self._layers[name]
        count = sum(len(op.kernels) for index in run if isinstance(op := ops[index], Compute))
        return count >= len(layer.forward(self._samples)) - layer.unneeded_forward(self._samples)


Change = tuple[Sequence[int], tuple[float, float]]
"""(the ops of a pass, (bytes that the first of them allocates, bytes that the last of them frees))."""


class _Sizes(NamedTuple):
    """Bytes of a layer: *every* activation; its input as it is *given*; *part* that selective recomputation makes.

    *forward* and *backward*: held only while the pass runs. *weights*: what W needs.
    """

    every: float
    given: float
    part: float
    forward: float
    backward: float
    weights: float


def _sizes(layer: Layer, previous: Layer | None, samples: int) -> _Sizes:
    return _Sizes(
        layer.activation_bytes(samples),
        previous.input_bytes_of_next(samples) if previous else 0.0,
        layer.recomputable_bytes(samples),
        layer.transient_bytes("F", samples),
        layer.transient_bytes("I", samples),
        layer.weight_bytes(samples),
    )


def _wholly(sizes: _Sizes, own: _Passes, before: _Passes | None) -> tuple[list[Change], float]:
    """The changes of the forward passes, each of the whole layer, and the bytes that are held in the end."""
    changes: list[Change] = []
    held = 0.0
    for run, indices in enumerate(own.forward[:-1]):
        handed = own.handed(run + 1, before)
        # the first time, an input that is not kept only passes through
        after = 0.0 if handed else sizes.given
        during = after if run == 0 else sizes.given
        changes.append((indices, (during - held + sizes.forward, during - after + sizes.forward)))
        held = after
    new = max(0.0, sizes.every - held)
    changes += [(indices, (new + sizes.forward, sizes.forward)) for indices in own.forward[-1:]]
    return changes, held + new


def _partly(sizes: _Sizes, own: _Passes) -> tuple[list[Change], float]:
    """The changes of a forward pass and of a second one of a part of the layer, and the bytes held in the end."""
    first, again = own.forward
    kept = sizes.every - sizes.part
    changes: list[Change] = [
        (first, (kept + sizes.forward, sizes.forward)),
        (again, (sizes.part + sizes.forward, sizes.forward)),
    ]
    return changes, sizes.every


def _backward(sizes: _Sizes, own: _Passes, held: float) -> Iterator[Change]:
    """The changes of the backward passes of a layer that holds *held* bytes."""
    needed = sizes.weights if "W" in own.backward else 0.0
    # gradients replace activations; if these are fewer bytes, I allocates the difference
    changes = {
        "B": (sizes.backward, held + sizes.backward),
        "I": (sizes.backward + max(0.0, needed - held), sizes.backward + max(0.0, held - needed)),
        "W": (0.0, needed),
    }
    for phase, indices in own.backward.items():
        yield indices, changes[phase]


def _passes(ops: Iterable[Op]) -> dict[Place, _Passes]:
    """The passes of each layer, for each micro-batch."""
    found: defaultdict[Place, _Passes] = defaultdict(_Passes)
    latest: tuple[Place, str] | None = None
    for index, op in enumerate(ops):
        if not (op.action and op.layer and op.action.phase in "FRBIW"):
            continue
        phase, place = op.action.phase, (op.action.stage, op.action.micro_batch, op.layer)
        if phase in "FR":
            if latest != (place, phase):
                found[place].forward.append([])
            found[place].forward[-1].append(index)
        else:
            found[place].backward.setdefault(phase, []).append(index)
        latest = place, phase
    return dict(found)


def _holding(op: Op, allocated: float, freed: float) -> Op:
    """*op* with these bytes of activations allocated and freed."""
    if (op.allocates.get("activations", 0.0), op.frees.get("activations", 0.0)) == (allocated, freed):
        return op
    return changed(op, allocates=_with(op.allocates, allocated), frees=_with(op.frees, freed))


def _with(given: Mapping[str, float], nbytes: float) -> Mapping[str, float]:
    """*given* with *nbytes* of activations in place of its own."""
    others = {category: held for category, held in given.items() if category != "activations"}
    return {**others, "activations": nbytes} if nbytes else others
