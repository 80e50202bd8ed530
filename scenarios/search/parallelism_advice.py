"""Advice on which parallelism to use, by the memory that a scenario needs.

If one tensor operation does not fit a GPU, tensor parallelism is needed. If the model does not fit, its states are
sharded (ZeRO), or it is split: by tensors within a node and into a pipeline across nodes. Otherwise data parallelism
suffices. The rules are those of Narayanan et al. 2021 (arXiv:2104.04473, section 3) and Rajbhandari et al. 2020
(arXiv:1910.02054). The candidates are those of `plan`, and so are their estimates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from math import inf, isfinite
from typing import Any

from clustersim.scenarios.alternatives.candidate import Candidate
from clustersim.scenarios.alternatives.changes import remedy_line
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.description import model_title, recompute_note
from clustersim.scenarios.build.memory_need import MemoryNeed, memory_need, of_capacity
from clustersim.scenarios.build.schedule import gradient_dtype
from clustersim.scenarios.results.efficiency import rules
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.planner import Planner
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.units import show
from clustersim.workloads.memory.optimizer import resident_states
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.parallelism.tensor import sharded
from clustersim.workloads.parallelism.zero import Zero

WITHOUT_PIPELINE = {"pp": 1, "schedule": "1f1b", "virtual_stages": None, "layout": None}
WITHOUT_TENSORS = {"tp": 1, "sequence_parallel": False, "tp_overlap": False}
"""Values of the keys of a pipeline, and of tensor parallelism, without it."""


@dataclass(frozen=True)
class Rung:
    """A *candidate*, the bytes that its fullest GPU needs, and its estimated step time (s; None if it does not fit).

    *rejected*: the rule that it breaks, in words; it needs no bytes then.
    """

    candidate: Candidate
    name: str
    nbytes: float = 0.0
    seconds: float | None = None
    rejected: str = ""

    @property
    def fits(self) -> bool:
        """True if it can run."""
        return self.seconds is not None


class Ladder:
    """The candidates that advice looks at, the simplest first, judged by *planner*.

    Keys that it does not name, such as cp, ep and recompute, are those of the scenario.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner, self.space = planner, planner.space
        self.given = self.space.as_given()

    @cached_property
    def rungs(self) -> list[Rung]:
        """Data parallelism, each way of sharding, tensor parallelism in a node, a pipeline across nodes.

        Only data parallelism is tried if it fits. Of the last two kinds the smallest degree that fits is taken, else
        the largest.
        """
        whole, *sharding = self.space.choices("data", {"pp": 1})
        plain = self.judged(data=whole)
        if plain.fits:
            return [plain]
        several = [plain, *(self.judged(data=method) for method in sharding)]
        tensor = self._first(self.judged(tp=tp, data=whole) for tp in _doubled(self.space.choices("tp", {})))
        inside = tensor[-1].candidate.values["tp"] if tensor else 1
        stages = _doubled(self.space.choices("pp", {"tp": inside}))
        pipelines = (self.judged(tp=inside, pp=pp, data=whole) for pp in stages)
        return [*several, *tensor, *([] if tensor and tensor[-1].fits else self._first(pipelines))]

    def judged(self, **values: Any) -> Rung:
        """Return the candidate with *values*, no tensor parallelism and no pipeline but by them, and all GPUs."""
        given = self.given.values
        chosen = {**WITHOUT_PIPELINE, **WITHOUT_TENSORS, **values}
        if chosen["tp"] > 1:  # experts of a rank take tokens of its own shard of the sequence
            chosen["sequence_parallel"] = bool(given.get("sequence_parallel")) or given.get("ep", 1) > 1
        chosen = {
            key: value for key, value in chosen.items() if key in given or key in self.space.given or key in values
        }
        return self.of(self.space.fed(self.space.settled(self.given.changed(**chosen))))

    def of(self, candidate: Candidate) -> Rung:
        """Return *candidate* as the planner bounds and estimates it."""
        planner, key = self.planner, candidate.key
        planner.bound([candidate])
        if planner.bounds[key].kind:
            return Rung(candidate, candidate.name, rejected=planner.bounds[key].why)
        planner.estimate([candidate])
        priced, variant = planner.journal.estimated[key], self.space.variant(candidate)
        return Rung(candidate, self._name(candidate, variant), priced.nbytes, priced.seconds, priced.why)

    def _name(self, candidate: Candidate, variant: BuiltScenario) -> str:
        """Return the candidate as text, such as ``tp 8 x dp 16`` or ``ZeRO-3 over dp 64, micro-batch 8``."""
        degrees = {axis: variant.derived.degree(axis) for axis in ("tp", "cp", "pp", "dp")}
        shown = [f"{axis} {size}" for axis, size in degrees.items() if size > 1 or axis == "dp"]
        data = variant.specification.parallelism.data
        label = f"ZeRO-{data.stage}" if isinstance(data, Zero) else data.method.upper()
        method = f"{label} over " if data.sharded else ""
        experts = f", ep {variant.specification.parallelism.ep}" if variant.specification.parallelism.ep > 1 else ""
        size = variant.derived.micro_batch_size
        other = f", micro-batch {size}" if size != self.space.scenario.derived.micro_batch_size else ""
        return f"{method}{' x '.join(shown)}{experts}{other}"

    def _first(self, several: Iterable[Rung]) -> list[Rung]:
        """Return the first that fits, else the last one that is possible, if any."""
        found: list[Rung] = []
        for one in several:
            if one.nbytes:
                found = [one]
            if one.fits:
                break
        return found

    @cached_property
    def beyond(self) -> Rung | None:
        """Another candidate of the plan that fits, where none of the `rungs` does; None if none fits."""
        found = self.planner.fitting()
        return Rung(found, found.name, *self._estimated(found)) if found else None

    def _estimated(self, candidate: Candidate) -> tuple[float, float | None]:
        priced = self.planner.journal.estimated[candidate.key]
        return priced.nbytes, priced.seconds


def _doubled(degrees: Iterable[int]) -> list[int]:
    """Return those of *degrees* that are powers of two above 1."""
    return [degree for degree in degrees if degree > 1 and degree & (degree - 1) == 0]


def advice(scenario: Scenario) -> str:
    """Return sentences: whether the model fits one GPU, and which parallelism it needs if not."""
    model, training, cluster = scenario.model, scenario.specification.training, scenario.cluster()
    if model is None or training is None:
        raise ScenarioError(f"{scenario.name} {scenario.aim}; there is no model to give advice on")
    capacity = min(gpu.memory_bytes for gpu in cluster.count(cluster.gpus))
    of = show(capacity, "size", 3) if isfinite(capacity) else "unbounded memory"
    gpus = f"{figure(len(cluster.gpus))} GPUs of {of}"
    title = f"{model_title(scenario)}, {figure(model.parameters)} parameters, on {gpus}"
    given = memory_need(scenario, scenario.schedule())
    rows = [[f"as given: {scenario.derived.described}", given.amount, "fits" if given.fits else "does not fit", ""]]
    try:
        ladder = Ladder(Planner(scenario))
    except ScenarioError as error:
        told = [f"Nothing else is compared: {str(error).partition(chr(10))[0]}."]
    else:
        rows += [_row(rung, capacity) for rung in ladder.rungs]
        told = list(_sentences(ladder, model, capacity))
    lines = [title, "", plain_text.table(rows, ["", "needs at most, a GPU", "", "estimated step"], "lrlr"), ""]
    batch = rules(
        training.global_batch_size, training.optimizer, model.tokens_per_sample or 1, training.critical_batch_size
    )
    return "\n".join([*lines, *_as_given(scenario, given), *told, *batch, "", COUNTED])


COUNTED = (
    "Counted are tensors, CUDA's context and the buffers of NCCL (`run` lists them). The allocator's slack is not: "
    "leave room for it."
)


def _row(rung: Rung, capacity: float) -> list[str]:
    if rung.rejected:
        return [rung.name, "", f"cannot run: {rung.rejected.partition(';')[0]}", ""]
    time = show(rung.seconds, "time") if rung.seconds is not None else ""
    return [rung.name, of_capacity(rung.nbytes, capacity), "fits" if rung.fits else "does not fit", time]


def _as_given(scenario: BuiltScenario, need: MemoryNeed) -> Iterator[str]:
    """Yield what to change if the scenario does not fit as it is, and which of its options saves nothing."""
    if not need.fits:
        yield f"As given it does not fit: {remedy_line(scenario)}."
    yield from (f"Note: {note}." for note in recompute_note(scenario))


def _sentences(ladder: Ladder, model: Model, capacity: float) -> Iterator[str]:
    scenario = ladder.space.scenario
    yield from _operation(scenario, model, capacity)
    plain, fitting = ladder.rungs[0], [rung for rung in ladder.rungs if rung.fits]
    if plain.fits:
        replicas = ladder.space.variant(plain.candidate).derived.replicas
        yield f"The model fits one GPU: data parallelism, a replica on each of {replicas}."
        return
    yield from _whole_model(ladder, model, capacity)
    yield from _not_cut(ladder, model)
    if fitting:
        yield from _first_that_fit(ladder, fitting, model)
    elif ladder.beyond:
        rung = ladder.beyond
        yield f"Nothing of this fits, but a combination does: {rung.name}, {show(rung.nbytes, 'size', 3)} a GPU."
    else:
        half = ladder.space.job.precisions[0]
        training = scenario.specification.training
        left = f" or precision: {half}" if training and training.precision == "fp32" != half else ""
        yield f"Nothing fits, however it is distributed: take more GPUs{left}."
        return
    yield f"`clustersim plan` compares all {len(ladder.planner.candidates):,} combinations."


def _first_that_fit(ladder: Ladder, fitting: list[Rung], model: Model) -> Iterator[str]:
    first = fitting[0]
    cut = next((rung for rung in fitting if rung.candidate.values["data"]["method"] == "ddp"), first)
    why = _why(ladder, first, model)
    yield f"First of these that fits: {first.name}, {show(first.nbytes, 'size', 3)} a GPU. {why}"
    if cut is not first:
        yield (
            f"By cutting the model, {cut.name} is the first that fits, {show(cut.nbytes, 'size', 3)} a GPU. "
            f"{_why(ladder, cut, model)}"
        )
    fastest = min(fitting, key=lambda rung: rung.seconds or inf)
    if fastest is not first or cut is not first:
        yield f"Of those that fit, {fastest.name} is the fastest by estimate, {show(fastest.seconds or 0.0, 'time')}."


def _states(scenario: BuiltScenario, model: Model) -> Mapping[str, float]:
    """Return the bytes of all states of *model* by category."""
    training = scenario.specification.training
    assert training is not None
    dtype = gradient_dtype(training, scenario.specification.parallelism.data, scenario.software)
    tensors = model.tensors_of({layer.name for layer in model.layers})
    return resident_states(tensors, training.updated_by(scenario.software), model.precision, dtype)


def _operation(scenario: BuiltScenario, model: Model, capacity: float) -> Iterator[str]:
    """Yield whether the largest layer fits by itself; if so, each of its tensor operations fits."""
    training = scenario.specification.training
    assert training is not None
    dtype = gradient_dtype(training, scenario.specification.parallelism.data, scenario.software)

    def alone(layer: Layer) -> float:
        held = resident_states(layer.tensors, training.updated_by(scenario.software), model.precision, dtype)
        return held["parameters"] + held["gradients"] + layer.activation_bytes(1) + layer.output_bytes(1)

    layer = max(model.layers, key=alone)
    what = f"The largest layer, {layer.name}, takes {show(alone(layer), 'size', 3)} with one sample"
    if alone(layer) <= capacity:
        yield f"{what}: no single operation needs tensor parallelism."
    else:
        yield f"{what}, more than a GPU has: its operations must be cut, tensor parallelism."


def _whole_model(ladder: Ladder, model: Model, capacity: float) -> Iterator[str]:
    plain = ladder.rungs[0]
    alone = ladder.space.variant(plain.candidate) if plain.nbytes else ladder.space.scenario
    states = sum(_states(alone, model).values())
    each = states / model.parameters
    listed = f"{each:.4g} bytes of parameters, gradients and optimizer states each are {show(states, 'size', 3)}"
    if states > capacity:
        yield f"The model does not fit one GPU: {listed}."
        return
    yield f"The model's states fit one GPU ({listed}); with activations and buffers it does not."
    values = plain.candidate.values
    changes: dict[str, Any] = {"micro_batch_size": 1} if values["micro_batch_size"] > 1 else {}
    changes |= {"recompute": "full"} if values.get("recompute") != "full" else {}
    least = ladder.of(plain.candidate.changed(**changes))
    if changes and least.fits:
        what = " and ".join(f"{key}: {value}" for key, value in changes.items())
        yield (
            f"Before anything is sharded: {what} bring{'s' if len(changes) == 1 else ''} data parallelism down to "
            f"{show(least.nbytes, 'size', 3)}, which fits."
        )


def _not_cut(ladder: Ladder, model: Model) -> Iterator[str]:
    """Yield why tensor parallelism is not among the candidates, if it is not."""
    if ladder.space.job.node > 1:
        try:
            sharded(model, 2)
        except ScenarioError as error:
            yield f"Tensor parallelism is left out: {error}."


def _why(ladder: Ladder, rung: Rung, model: Model) -> str:
    variant = ladder.space.variant(rung.candidate)
    derived, data = variant.derived, variant.specification.parallelism.data
    if data.sharded:
        whole, over = _states(variant, model), derived.replicas * derived.degree("cp")
        held = sum(nbytes / (over if name in data.sharded else 1) for name, nbytes in whole.items())
        gathers = "parameters" in data.sharded
        cost = "sends half as much again as data parallelism" if gathers else "sends what data parallelism does"
        if variant.specification.parallelism.ep > 1:
            return f"One micro-batch {cost}."
        return f"Each GPU holds {held / model.parameters:.3g} bytes of states a parameter; one micro-batch {cost}."
    inside = "Tensor parallelism communicates in every layer and stays inside the node"
    across = "a pipeline sends only what passes between its stages"
    if derived.degree("pp") == 1:
        return f"{inside}."
    return f"{inside}; {across}, and may cross nodes." if derived.degree("tp") > 1 else f"{across.capitalize()}."


def figure(number: float) -> str:
    """Return a count with two or three digits and a word.

    >>> figure(1024), figure(175e9), figure(25_557_032)
    ('1,024', '175 billion', '25.6 million')
    """
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,.0f}"
