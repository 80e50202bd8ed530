"""The estimate of a scenario: its step time and its memory, from prices that candidates share.

Each candidate is a scenario with its own software stack and precision, as `run` takes them.

The schedule is made by the passes of the scenario itself, on priced layers (`prices`), so it has the same
pipeline order, buckets, updates and allocations. One rank of each program is executed by the engine on transfers of
known duration. Of many micro-batches only a few are executed: in the steady state of a pipeline each further one adds
the same time, at least that of the rank that computes longest, and no memory. An order that holds more activations the
more micro-batches there are, such as GPipe's, has no steady state: all of them are executed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, TypeVar

import numpy as np

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.derived import Derived
from clustersim.scenarios.build.layer_probe import (
    AGAIN,
    PHASES,
    STOPPED,
    by_phase,
    content,
    distinct_layers,
    overlaps,
    probe,
    probed,
    with_stopped,
)
from clustersim.scenarios.build.memory_need import MemoryNeed, memory_need
from clustersim.scenarios.build.network import network_of
from clustersim.scenarios.build.schedule import model_share, schedule_of_share
from clustersim.scenarios.search.pipeline_facts import PipelineFacts, pipeline_facts
from clustersim.scenarios.search.prices import LayerPrice, Representatives, Transfers, of_priced_layers, priced
from clustersim.scenarios.specification.parallelism import ParallelismSection
from clustersim.scenarios.specification.specification import Specification
from clustersim.scenarios.specification.training import PrecisionByOperator
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.engine.pricing import Pricing, Variation
from clustersim.simulator.engine.setup import Setup
from clustersim.simulator.engine_choice import numba_fault
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.hardware.slowest import waited_for
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.ops import Compute
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.memory.compute import PIPELINE
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.operators.stages import ENDS, stages_of

T = TypeVar("T")

NEAR = 1e-3
"""By what share of its seconds a micro-batch may be shorter than in the steady state: an estimate errs by less."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated step time *seconds* (None: not estimated), and the *need* of memory of the tightest GPU."""

    seconds: float | None
    need: MemoryNeed


class Estimator:
    """Estimates of *scenario* and of its variants: scenarios that differ in `parallelism` and `training` only."""

    def __init__(self, scenario: BuiltScenario) -> None:
        self.scenario = scenario
        self._known: dict[Hashable, Any] = {}

    def once(self, what: str, on: Hashable, make: Callable[[], T]) -> T:
        """Return what *make* returns, made once for *what* and all that it depends *on*.

        It is kept as long as the estimator, so the ``id`` of something made so may stand in *on* of something else.
        """
        key = what, on
        if key not in self._known:
            self._known[key] = make()
        known: T = self._known[key]
        return known

    def estimate(self, variant: BuiltScenario, within: float = inf) -> Estimate:
        """Return the estimate of *variant*; only that of its memory if that is more than *within* bytes.

        Raises `ScenarioError` if it cannot be scheduled.
        """
        numbers = self._few(variant)
        schedule = self.schedule(variant, numbers[-1])
        need = memory_need(variant, schedule, network=self.network(variant.derived).communicator)
        if need.nbytes > within:
            return Estimate(None, need)
        last = self._timeline(schedule, variant)
        if len(numbers) == 1:
            return Estimate(last.step_time, need)
        first = self._timeline(self.schedule(variant, numbers[0]), variant)
        while not _steady(first, last):
            numbers = self._few(variant, numbers[1])
            first, last = last, self._timeline(self.schedule(variant, numbers[-1]), variant)
            if len(numbers) == 1:
                return Estimate(last.step_time, need)
        more = (variant.derived.micro_batches - numbers[1]) / (numbers[1] - numbers[0])
        return Estimate(last.step_time + more * (last.step_time - first.step_time), need)

    def _few(self, variant: BuiltScenario, first: int = 0) -> tuple[int, ...]:
        """Return two numbers of micro-batches that may be in the steady state, or the number of all, if it is faster.

        *first*: the lower of the two, if it is known.
        """
        stages, count = variant.specification.parallelism.pp, variant.derived.micro_batches
        pipeline = self.pipeline(variant.specification)
        if pipeline.asynchronous or pipeline.grows or variant.derived.by_stage:
            return (count,)
        first = first or pipeline.least * stages + count % stages
        second = first + stages
        return (first, second) if count > first + second else (count,)

    def pipeline(self, specification: Specification) -> PipelineFacts:
        """Return the facts of the pipeline order."""
        parallelism, training = specification.parallelism, specification.training
        assert training is not None
        recompute = training.recompute_method == "full" and parallelism.recomputes_stages
        key = parallelism.schedule, parallelism.pp, parallelism.virtual_stages, recompute
        return self.once("pipeline", key, lambda: pipeline_facts(parallelism, recompute))

    def schedule(self, variant: BuiltScenario, micro_batches: int) -> Schedule:
        """Return the schedule of priced layers with so many micro-batches."""
        return schedule_of_share(
            variant.specification,
            self.priced_share(variant),
            variant.software,
            replace(variant.derived, micro_batches=micro_batches),
            variant.document,
            variant.cluster(),
        )

    def _timeline(self, schedule: Schedule, variant: BuiltScenario) -> Timeline:
        network = self.network(variant.derived)
        communicator, classes = network.communicator, Representatives(schedule, network)
        pricing = Pricing(schedule, communicator.cluster, communicator.devices, variant.software, Variation())
        setup = Setup(schedule, classes, pricing)
        if numba_fault():
            from clustersim.simulator.engine.reference.simulation import run as reference

            outcome = reference(setup)
        else:
            from clustersim.simulator.engine.compiled.execution import run

            outcome = run(setup)
        return Timeline(schedule, communicator.cluster, outcome.columns, classes.representative, communicator.devices)

    def network(self, derived: Derived) -> Transfers:
        """Return the prices of transfers between the devices of *derived*."""

        def made() -> Transfers:
            return Transfers(network_of(self.scenario.specification, self.scenario.cluster(), derived.devices))

        return self.once("network", derived.devices, made)

    # Layers.

    def model(self, variant: BuiltScenario) -> Model:
        """Return the model of *variant*, shared by all variants that agree in what it depends on."""
        training = variant.specification.training
        assert training is not None
        casts = variant.derived.micro_batches if isinstance(training.precision, PrecisionByOperator) else 0

        def made() -> Model:
            assert variant.model is not None
            return variant.model

        return self.once("model", (variant.stack, training.precision, casts), made)

    def share(self, variant: BuiltScenario) -> Model:
        """Return the model of one rank of *variant*."""
        parallelism, model = variant.specification.parallelism, self.model(variant)
        key = id(model), parallelism.within_replica
        return self.once("share", key, lambda: model_share(model, parallelism.parts, variant.document))

    def stages(self, share: Model, parallelism: ParallelismSection) -> list[list[Layer]]:
        """Return the layers of each stage of *share*, which `share` or `priced_share` has returned."""
        cut = parallelism.pp * parallelism.stages_per_rank, parallelism.layout, parallelism.split_rank
        return self.once("stages", (id(share), str(cut)), lambda: stages_of(share, *cut))

    def priced_share(self, variant: BuiltScenario) -> Model:
        """Return the model of one rank of *variant* with priced layers, in the groups of its layouts."""
        share, prices, samples = self.share(variant), self.prices(variant), variant.derived.micro_batch_size

        def made() -> Model:
            layers = distinct_layers(share)
            return of_priced_layers(share, {key: priced(one, samples, prices[key]) for key, one in layers.items()})

        return self.once("priced", (id(share), samples, id(prices)), made)

    # Clocks of equal GPUs.

    def waited_for(self, variant: BuiltScenario) -> float:
        """Return how many GPUs have a slowest one as slow as that for which a step of *variant* waits.

        `scenarios.build.derived.at_clock_of_longest_stage` says why. The work of a rank is the kernels of its layers.
        """
        derived, parallelism = variant.derived, variant.specification.parallelism
        ranks, gpu = len(derived.devices), self.gpu(derived)
        if parallelism.pp == 1 or derived.by_stage or gpu is None or not gpu.spread:
            return ranks
        facts, computing = self.pipeline(variant.specification), self.computing(variant)
        stages, phases = self.stages(self.share(variant), parallelism), self.phases(variant)

        def made() -> float:
            seconds = [sum(computing[content(one)].total(phases[one.kind in ENDS]) for one in own) for own in stages]
            work = Counter[float]()
            for of_rank in facts.stages:
                work[sum(part * seconds[stage] for stage, part in of_rank.items())] += ranks // len(facts.stages)
            return waited_for(work, gpu.spread)

        return self.once("waited for", (id(stages), id(facts), id(computing), phases, ranks), made)

    def phases(self, variant: BuiltScenario) -> tuple[str, str]:
        """Return the phases of a micro-batch on layers that may be recomputed, and on those that never are."""
        parallelism, training = variant.specification.parallelism, variant.specification.training
        assert training is not None
        method = "" if parallelism.recomputes_stages else training.recompute_method
        own = self.pipeline(variant.specification).phases
        return own + {"full": STOPPED, "selective": AGAIN, "operators": AGAIN}.get(method, ""), own

    def gpu(self, derived: Derived) -> Accelerator | None:
        """Return the GPU of all ranks; None if they differ."""
        cluster = self.network(derived).communicator.cluster
        found = self.once("gpus", derived.devices, lambda: list(cluster.count(derived.devices)))
        return found[0] if len(found) == 1 else None

    # Prices of layers, by their `content`.

    def prices(self, variant: BuiltScenario) -> Mapping[Hashable, LayerPrice]:
        """Return the price of each distinct layer of the `share` of *variant* with the clock of `waited_for`.

        A faster clock shortens the kernels of a layer, and nothing else of it.
        """
        prices, count = self._at_slowest(variant), self.waited_for(variant)

        def made() -> Mapping[Hashable, LayerPrice]:
            slow, fast = self.computing(variant), self.computing(variant, count)
            return {key: price.less(slow[key], fast[key]) for key, price in prices.items()}

        return self.once("clocked", (id(prices), count), made)

    def _at_slowest(self, variant: BuiltScenario) -> Mapping[Hashable, LayerPrice]:
        """Return `prices` with the slowest of all GPUs, from one simulation of all distinct layers."""
        derived, share = variant.derived, self.share(variant)
        phases = PHASES if self.pipeline(variant.specification).splits else PHASES[:2]
        layout = derived.layouts[0]
        degrees = tuple(layout.degrees.items())

        def inner() -> int:
            groups = tuple(layout.groups(axis) for axis, _ in degrees if axis not in (REPLICAS, PIPELINE))
            return id(self.once("groups", groups, lambda: groups))

        # hooks of modules, which ZeRO-3 has, are a part of the price
        data, hooks = variant.specification.parallelism.data, variant.software.module_hooks
        hosted = (data.method, tuple(data.sharded), _recomputes_layers(variant)) if hooks else ()
        group = self.once("inner", degrees, inner)
        key = id(share), derived.micro_batch_size, phases, group, derived.devices, hosted
        return self.once("prices", key, lambda: self._simulated(variant, share, phases))

    def _simulated(
        self, variant: BuiltScenario, share: Model, phases: tuple[str, ...]
    ) -> Mapping[Hashable, LayerPrice]:
        parts = list(variant.specification.parallelism.parts.values())
        layers = distinct_layers(share)
        beside, samples = overlaps(parts, variant.software), variant.derived.micro_batch_size
        program, data = probe(list(layers.values()), samples, beside, phases), variant.specification.parallelism.data
        again = _recomputes_layers(variant)
        hosted = data.with_host_work(program, list(layers.values()), variant.software, again=again)
        early = variant.software.early_stop
        whole = with_stopped(hosted, layers.values(), samples, beside, early_stop=early)
        schedule = probed(whole, variant.derived, parts)
        seconds, buffers = by_phase(schedule.programs[0], self._timeline(schedule, variant))
        return {key: LayerPrice(seconds[layer.name], buffers[layer.name]) for key, layer in layers.items()}

    def least_prices(self, variant: BuiltScenario) -> Mapping[Hashable, LayerPrice]:
        """Return a lower bound of `prices`: kernels, all faster by what the clock makes products faster."""
        slow, gpu = self.computing(variant), self.gpu(variant.derived)
        count, ranks = self.waited_for(variant), len(variant.derived.devices)
        if gpu is None or count == ranks:
            return slow
        least = partial(LayerPrice.times, factor=gpu.slowdown(count, now=ranks))
        return self.once("least", (id(slow), count), lambda: {key: least(price) for key, price in slow.items()})

    def computing(self, variant: BuiltScenario, count: float = 0) -> Mapping[Hashable, LayerPrice]:
        """Return a lower bound of the price of each distinct layer: its kernels without launches and exchanges.

        The computations of a rank run one after the other, whatever its exchanges run beside. *count*: on the slowest
        of so many GPUs; 0: of all.
        """
        derived, share, software = variant.derived, self.share(variant), variant.software
        device, ranks = derived.devices[0], len(derived.devices)

        def made() -> Mapping[Hashable, LayerPrice]:
            gpu = self.network(derived).communicator.cluster.accelerator(device).slowest_of(count or ranks, now=ranks)
            samples = derived.micro_batch_size

            def seconds(kernels: Iterable[Kernel]) -> float:
                return sum(gpu.kernel_seconds(kernel, software) for kernel in kernels)

            def price(layer: Layer) -> LayerPrice:
                forward, again = layer.forward(samples), seconds(layer.recomputable_forward(samples))
                found = {"F": seconds(forward), "I": seconds(layer.backward_input(samples))}
                found["W"] = seconds(layer.backward_weights(samples))
                stopped = found["F"]
                if unneeded := layer.unneeded_forward(samples) if software.early_stop else 0:
                    stopped -= seconds(forward[-unneeded:])
                # a whole backward pass has the kernels of both its halves
                return LayerPrice({**found, "B": found["I"] + found["W"], AGAIN: again, STOPPED: stopped})

            return {key: price(layer) for key, layer in distinct_layers(share).items()}

        return self.once("computing", (id(share), derived.micro_batch_size, device, count or ranks), made)


def _steady(first: Timeline, last: Timeline) -> bool:
    """Return whether the micro-batches that *last* has and *first* has not take as long as each rank computes on them.

    They take less while they fill a bubble that fewer micro-batches leave, as in the orders without bubbles.
    """
    more = last.step_time - first.step_time
    computed = (_busy(last, rank) - _busy(first, rank) for rank in last.distinct_ranks)
    return more >= max(computed) * (1 - NEAR)


def _busy(timeline: Timeline, rank: int) -> float:
    """Return the seconds for which the GPU of *rank* computes."""
    columns, program = timeline.of(rank), timeline.schedule.program(rank)
    on_gpu = program.column(lambda op: op.on == "gpu", np.bool_, (Compute,))[columns.op]
    return float((columns.end - columns.begin)[on_gpu].sum())


def _recomputes_layers(variant: BuiltScenario) -> bool:
    training = variant.specification.training
    return training is not None and training.recompute_method == "full"
