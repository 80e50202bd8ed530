"""Advice on which parallelism to use, by the memory that a scenario needs.

If one tensor operation does not fit a GPU, tensor parallelism is needed. If the model does not fit, its states are
sharded (ZeRO), or it is split: by tensors within a node and into a pipeline across nodes. Otherwise data parallelism
suffices. The rules are those of Narayanan et al. 2021 (arXiv:2104.04473, section 3) and Rajbhandari et al. 2020
(arXiv:1910.02054).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from scenarios.build.built import BuiltScenario
from scenarios.build.schedule import gradient_dtype, training_schedule
from scenarios.specification.parallelism import ParallelismSection
from scenarios.specification.training import Training
from simulator.analysis import text
from simulator.analysis.memory import bound
from simulator.errors import ScenarioError, ScheduleError
from simulator.units import show
from workloads.composition import degrees, layouts
from workloads.memory.optimizer import state_bytes
from workloads.model import Layer, Model
from workloads.parallelism import DataMethod
from workloads.parallelism.ddp import DistributedDataParallel
from workloads.parallelism.tensor import sharded
from workloads.parallelism.zero import Zero, zero_state_bytes
from workloads.stages import ENDS


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to distribute the model: the degrees *tp*, *pp*, *dp*, the *stage* of ZeRO, and the *nbytes* per GPU."""

    tp: int
    pp: int
    dp: int
    stage: int
    nbytes: float

    @property
    def name(self) -> str:
        """The candidate as text, such as ``tp 8 x dp 16``."""
        if self.stage:
            return f"ZeRO-{self.stage} over dp {self.dp}"
        cut = [f"{axis} {size}" for axis, size in (("tp", self.tp), ("pp", self.pp)) if size > 1]
        return " x ".join([*cut, f"dp {self.dp}"])


@dataclass(frozen=True)
class MemoryBudget:
    """The *capacity* of a GPU (bytes), the number of *gpus*, and what needs the memory: *model* and *training*.

    *node*: the largest number of GPUs in a node.
    """

    scenario: BuiltScenario
    model: Model
    training: Training
    capacity: float
    gpus: int
    node: int

    def gradient_dtype(self, stage: int = 0) -> str:
        """Return the type in which gradients are accumulated under ZeRO of that *stage*."""
        data = _data(self.scenario.specification.parallelism.data, stage)
        return gradient_dtype(self.training, data, self.scenario.software)

    def fits(self, candidate: Candidate) -> bool:
        """Return whether a GPU has the memory that *candidate* needs."""
        return candidate.nbytes <= self.capacity

    def candidate(self, tp: int = 1, pp: int = 1, stage: int = 0, **training: Any) -> Candidate:
        """Return the candidate of these degrees, with an upper bound of the memory of a GPU.

        A pipeline runs 1F1B over as many micro-batches as it has stages. The number of replicas is the largest that the
        GPUs allow and that divides the batch. *training* changes keys of that section. Raises `ScenarioError` or
        `ScheduleError` if the model cannot be split so.
        """
        specification, derived = self.scenario.specification, self.scenario.derived
        changed = self.training.model_copy(update=training)
        samples = training.get("micro_batch_size") or derived.micro_batch_size
        shares, most = max(1, self.training.global_batch_size // samples), max(1, self.gpus // (tp * pp))
        dp = next(replicas for replicas in range(min(shares, most), 0, -1) if shares % replicas == 0)
        parallelism = ParallelismSection(
            tp=tp,
            sequence_parallel=tp > 1 and specification.parallelism.sequence_parallel,
            pp=pp,
            layout="balanced" if pp > 1 else None,
            dp=dp,
            data=_data(specification.parallelism.data, stage),
        )
        schedule = training_schedule(
            specification.model_copy(update={"parallelism": parallelism, "training": changed}),
            self.model,
            self.scenario.software,
            replace(
                derived,
                degrees=degrees(list(parallelism.parts.values()), self.gpus),
                layouts=layouts(list(parallelism.parts.values()), self.gpus, parallelism.numbering),
                micro_batch_size=samples,
                micro_batches=pp,
                by_stage=None,
            ),
            self.scenario.document,
        )
        return Candidate(tp, pp, dp, stage, bound(schedule).peak.nbytes)


def _data(given: DataMethod, stage: int) -> Zero:
    """Return ZeRO of that *stage* (0: plain data parallelism) with the bucket size of *given*."""
    bucket = given.bucket if isinstance(given, DistributedDataParallel | Zero) else None
    return Zero.model_validate({"method": "zero", "stage": stage, **({"bucket": f"{bucket:.0f} B"} if bucket else {})})


def memory_budget(scenario: BuiltScenario) -> MemoryBudget:
    """Return the memory budget of *scenario*. Raises `ScenarioError` if it trains no model."""
    model, training, cluster = scenario.model, scenario.specification.training, scenario.cluster()
    if model is None or training is None:
        raise ScenarioError(f"{scenario.name} measures a collective; there is no model to give advice on")
    capacity = min(cluster.accelerator(gpu).memory_bytes for gpu in cluster.gpus)
    nodes: dict[int | str, int] = {}
    for gpu in cluster.gpus:
        nodes[cluster.node_of(gpu)] = nodes.get(cluster.node_of(gpu), 0) + 1
    return MemoryBudget(scenario, model, training, capacity, len(cluster.gpus), max(nodes.values()))


def candidates(budget: MemoryBudget) -> list[Candidate]:
    """Return the candidates: data parallelism, ZeRO-1, 2, 3, tensor parallelism in a node, pipeline across nodes.

    Only data parallelism is tried if it fits. Of the last two kinds the smallest degree that fits is taken, else the
    largest.
    """
    plain = budget.candidate()
    if budget.fits(plain):
        return [plain]
    sharded = [budget.candidate(stage=stage) for stage in (1, 2, 3)] if plain.dp > 1 else []
    degrees = [2**n for n in range(1, budget.node.bit_length()) if 2**n <= budget.node]
    tensor = _first_fit(budget, degrees, lambda tp: budget.candidate(tp=tp))
    inside = tensor[-1].tp if tensor else 1
    between = sum(layer.kind not in ENDS for layer in budget.model.layers)
    stages = [2**n for n in range(1, between.bit_length()) if 2**n <= min(between, budget.gpus // inside)]
    pipeline = [] if tensor and budget.fits(tensor[-1]) else stages
    cut = _first_fit(budget, pipeline, lambda pp: budget.candidate(tp=inside, pp=pp))
    return [plain, *sharded, *tensor, *cut]


def _first_fit(budget: MemoryBudget, degrees: Iterable[int], candidate: Callable[[int], Candidate]) -> list[Candidate]:
    """Return the first of *degrees* that fits, else the last one that is possible, if any."""
    found: list[Candidate] = []
    for degree in degrees:
        try:
            found = [candidate(degree)]
        except (ScenarioError, ScheduleError):
            continue
        if budget.fits(found[0]):
            break
    return found


def advice(scenario: BuiltScenario) -> str:
    """Return sentences: whether the model fits one GPU, and which parallelism it needs if not."""
    known = memory_budget(scenario)
    model = known.model
    of = show(known.capacity, "size", 3) if isfinite(known.capacity) else "unbounded memory"
    lines = [f"{model.name}, {figure(model.parameters)} parameters, on {figure(known.gpus)} GPUs of {of}", ""]
    tried = candidates(known)
    rows = [
        [candidate.name, show(candidate.nbytes, "size", 3), "fits" if known.fits(candidate) else "does not fit"]
        for candidate in tried
    ]
    lines += [text.table(rows, ["", "at most, a GPU", ""], "lrl"), ""]
    return "\n".join([*lines, *_sentences(known, tried), "", NOT_COUNTED])


NOT_COUNTED = (
    "Not counted here: what CUDA, NCCL and the allocator's slack take of each GPU (`run` tells); leave room for them."
)


def _sentences(known: MemoryBudget, tried: list[Candidate]) -> Iterator[str]:
    yield from _operation(known)
    plain, fitting = tried[0], [candidate for candidate in tried if known.fits(candidate)]
    if fitting and fitting[0] is plain:
        yield f"The model fits one GPU: data parallelism, a replica on each of {plain.dp}."
        return
    yield from _whole_model(known)
    yield from _not_cut(known)
    if not fitting:
        yield "Nothing of this fits: take more GPUs, a smaller micro-batch or recompute: full."
        return
    first, cut = fitting[0], next((candidate for candidate in fitting if not candidate.stage), fitting[0])
    yield f"First of these that fits: {first.name}, {show(first.nbytes, 'size', 3)} a GPU. {_why(known, first)}"
    if cut is not first:
        yield (
            f"By cutting the model, {cut.name} is the first that fits, {show(cut.nbytes, 'size', 3)} a GPU. "
            f"{_why(known, cut)}"
        )


def _operation(known: MemoryBudget) -> Iterator[str]:
    """Yield whether the largest layer fits by itself; if so, each of its tensor operations fits."""
    held = state_bytes(known.training.optimizer, known.model.precision, known.gradient_dtype())

    def alone(layer: Layer) -> float:
        weights = layer.parameters * (held["parameters"] + held["gradients"])
        return weights + layer.activation_bytes(1) + layer.output_bytes(1)

    layer = max(known.model.layers, key=alone)
    what = f"The largest layer, {layer.name}, takes {show(alone(layer), 'size', 3)} with one sample"
    if alone(layer) <= known.capacity:
        yield f"{what}: no single operation needs tensor parallelism."
    else:
        yield f"{what}, more than a GPU has: its operations must be cut, tensor parallelism."


def _whole_model(known: MemoryBudget) -> Iterator[str]:
    training, parameters = known.training, known.model.parameters
    each = sum(state_bytes(training.optimizer, known.model.precision, known.gradient_dtype()).values())
    states = each * parameters
    listed = f"{each:g} bytes of parameters, gradients and optimizer states each are {show(states, 'size', 3)}"
    if states > known.capacity:
        yield f"The model does not fit one GPU: {listed}."
        return
    yield f"The model's states fit one GPU ({listed}); with activations and buffers it does not."
    least = known.candidate(micro_batch_size=1, recompute="full")
    if known.fits(least):
        yield (
            f"Before anything is sharded: micro_batch_size: 1 and recompute: full bring data parallelism down to "
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
        held = zero_state_bytes(candidate.stage, candidate.dp, training.optimizer, precision, dtype)
        cost = (
            "sends half as much again as data parallelism"
            if candidate.stage == 3
            else "sends what data parallelism does"
        )
        return f"Each GPU holds {sum(held.values()):.3g} bytes of states a parameter; one micro-batch {cost}."
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
