"""Advice on which parallelism to use, by the memory that a scenario needs.

If one tensor operation does not fit a GPU, tensor parallelism is needed. If the model does not fit, its states are
sharded (ZeRO), or it is split: by tensors within a node and into a pipeline across nodes. Otherwise data parallelism
suffices. The rules are those of Narayanan et al. 2021 (arXiv:2104.04473, section 3) and Rajbhandari et al. 2020
(arXiv:1910.02054).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from scenarios.build.built import BuiltScenario
from scenarios.build.names import model_title
from scenarios.build.notes import recompute_note
from scenarios.plan.candidates import Candidate, MemoryBudget, candidates, memory_budget
from scenarios.results.memory_need import MemoryNeed, memory_need
from scenarios.results.remedies import remedy_line
from simulator.analysis import text
from simulator.errors import ScenarioError
from simulator.units import show
from workloads.batch_size import rules
from workloads.memory.optimizer import resident_states
from workloads.model import Layer
from workloads.parallelism.tensor import sharded
from workloads.parallelism.zero import SHARDED


def advice(scenario: BuiltScenario) -> str:
    """Return sentences: whether the model fits one GPU, and which parallelism it needs if not."""
    known = memory_budget(scenario)
    model = known.model
    of = show(known.capacity, "size", 3) if isfinite(known.capacity) else "unbounded memory"
    lines = [
        f"{model_title(scenario)}, {figure(model.parameters)} parameters, on {figure(known.gpus)} GPUs of {of}",
        "",
    ]
    tried = candidates(known)
    given = memory_need(scenario, scenario.schedule())
    rows = [_row(f"as given: {scenario.derived.described}", given)]
    rows += [_row(candidate.name, candidate.need) for candidate in tried]
    lines += [text.table(rows, ["", "needs at most, a GPU", ""], "lrl"), ""]
    batch = rules(
        known.training.global_batch_size,
        known.training.optimizer,
        known.model.tokens_per_sample or 1,
        known.training.critical_batch_size,
    )
    return "\n".join([*lines, *_as_given(scenario, given), *_sentences(known, tried), *batch, "", COUNTED])


COUNTED = (
    "Counted are tensors, CUDA's context and the buffers of NCCL (`run` lists them). The allocator's slack is not: "
    "leave room for it."
)


def _row(name: str, need: MemoryNeed) -> list[str]:
    return [name, need.amount, "fits" if need.fits else "does not fit"]


def _as_given(scenario: BuiltScenario, need: MemoryNeed) -> Iterator[str]:
    """Yield what to change if the scenario does not fit as it is, and which of its options saves nothing."""
    if not need.fits:
        yield f"As given it does not fit: {remedy_line(scenario)}."
    yield from (f"Note: {note}." for note in recompute_note(scenario))


def _sentences(known: MemoryBudget, tried: list[Candidate]) -> Iterator[str]:
    yield from _operation(known)
    plain, fitting = tried[0], [candidate for candidate in tried if known.fits(candidate)]
    if fitting and fitting[0] is plain:
        yield f"The model fits one GPU: data parallelism, a replica on each of {plain.dp}."
        return
    yield from _whole_model(known)
    yield from _not_cut(known)
    if not fitting:
        yield f"Nothing of this fits: {_last_resort(known)}."
        return
    first, cut = fitting[0], next((candidate for candidate in fitting if not candidate.stage), fitting[0])
    yield f"First of these that fits: {first.name}, {show(first.nbytes, 'size', 3)} a GPU. {_why(known, first)}"
    if cut is not first:
        yield (
            f"By cutting the model, {cut.name} is the first that fits, {show(cut.nbytes, 'size', 3)} a GPU. "
            f"{_why(known, cut)}"
        )


def _last_resort(known: MemoryBudget) -> str:
    """Return what is left to change where no candidate fits; nothing that the scenario has already."""
    left = ["take more GPUs"]
    if known.scenario.derived.micro_batch_size > 1:
        left.append("a smaller micro-batch")
    if known.training.precision == "fp32":
        left.append("precision: bf16")
    if known.training.recompute_method != "full":
        left.append("recompute: full")
    return " or ".join(filter(None, (", ".join(left[:-1]), left[-1])))


def _operation(known: MemoryBudget) -> Iterator[str]:
    """Yield whether the largest layer fits by itself; if so, each of its tensor operations fits."""
    optimizer, precision, dtype = known.training.update_rule, known.model.precision, known.gradient_dtype()

    def alone(layer: Layer) -> float:
        held = resident_states(layer.tensors, optimizer, precision, dtype)
        return held["parameters"] + held["gradients"] + layer.activation_bytes(1) + layer.output_bytes(1)

    layer = max(known.model.layers, key=alone)
    what = f"The largest layer, {layer.name}, takes {show(alone(layer), 'size', 3)} with one sample"
    if alone(layer) <= known.capacity:
        yield f"{what}: no single operation needs tensor parallelism."
    else:
        yield f"{what}, more than a GPU has: its operations must be cut, tensor parallelism."


def _whole_model(known: MemoryBudget) -> Iterator[str]:
    training, model = known.training, known.model
    tensors = model.tensors_of({layer.name for layer in model.layers})
    states = sum(resident_states(tensors, training.update_rule, model.precision, known.gradient_dtype()).values())
    each = states / model.parameters
    listed = f"{each:.4g} bytes of parameters, gradients and optimizer states each are {show(states, 'size', 3)}"
    if states > known.capacity:
        yield f"The model does not fit one GPU: {listed}."
        return
    yield f"The model's states fit one GPU ({listed}); with activations and buffers it does not."
    changes: dict[str, Any] = {"micro_batch_size": 1} if known.scenario.derived.micro_batch_size > 1 else {}
    changes |= {"recompute": "full"} if training.recompute_method != "full" else {}
    least = known.candidate(**changes)
    if changes and known.fits(least):
        what = " and ".join(f"{key}: {value}" for key, value in changes.items())
        yield (
            f"Before anything is sharded: {what} bring{'s' if len(changes) == 1 else ''} data parallelism down to "
            f"{show(least.nbytes, 'size', 3)}, which fits."
        )


def _not_cut(known: MemoryBudget) -> Iterator[str]:
    """Yield why tensor parallelism is not among the candidates, if it is not."""
    if known.node > 1:
        try:
            sharded(known.model, 2)
        except ScenarioError as error:
            yield f"Tensor parallelism is left out: {error}."


def _why(known: MemoryBudget, candidate: Candidate) -> str:
    training, precision = known.training, known.model.precision
    if candidate.stage:
        dtype = known.gradient_dtype(candidate.stage)
        model = known.model
        tensors = model.tensors_of({layer.name for layer in model.layers})
        whole = resident_states(tensors, training.update_rule, precision, dtype)
        divided = SHARDED[candidate.stage]
        held = sum(nbytes / (candidate.dp if name in divided else 1) for name, nbytes in whole.items())
        cost = (
            "sends half as much again as data parallelism"
            if candidate.stage == 3
            else "sends what data parallelism does"
        )
        return f"Each GPU holds {held / model.parameters:.3g} bytes of states a parameter; one micro-batch {cost}."
    inside = "Tensor parallelism communicates in every layer and stays inside the node"
    across = "a pipeline sends only what passes between its stages"
    if candidate.pp == 1:
        return f"{inside}."
    return f"{inside}; {across}, and may cross nodes." if candidate.tp > 1 else f"{across.capitalize()}."


def figure(number: float) -> str:
    """Return a count with two or three digits and a word.

    >>> figure(1024), figure(175e9), figure(25_557_032)
    ('1,024', '175 billion', '25.6 million')
    """
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,.0f}"
