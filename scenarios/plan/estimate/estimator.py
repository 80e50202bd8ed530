"""The estimate of a scenario: its step time and its memory, from prices that candidates share.

Each candidate is a scenario with its own software stack and precision, as `run` takes them.

The schedule is made by the passes of the scenario itself, on priced layers (`layers`), so it has the same pipeline
order, buckets, updates and allocations. One rank of each program is executed by the engine on transfers of known
duration (`transfers`). Of many micro-batches only a few are executed: in the steady state of a pipeline each further
one adds the same time and no memory. An order that holds more activations the more micro-batches there are, such as
GPipe's, has no steady state: all of them are executed.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import inf

from scenarios.build.built import BuiltScenario
from scenarios.build.derived import Derived
from scenarios.build.network import network_of
from scenarios.build.probe import PHASES, by_phase, distinct_layers, overlaps, probe, probed
from scenarios.build.schedule import model_share, schedule_of_share
from scenarios.plan.estimate.layers import of_priced_layers, priced
from scenarios.plan.estimate.pipelines import PipelineFacts, pipeline_facts
from scenarios.plan.estimate.representatives import Representatives
from scenarios.plan.estimate.transfers import Transfers
from scenarios.results.memory_need import MemoryNeed, memory_need
from scenarios.specification.precision import PrecisionByOperator
from scenarios.specification.specification import Specification
from simulator.engine.choice import numba_fault
from simulator.engine.pricing import Pricing
from simulator.engine.setup import Setup
from simulator.engine.variation import Variation
from simulator.schedule import Schedule
from simulator.schedule.matching import Matching
from simulator.schedule.mesh import Rows
from simulator.timeline import Timeline
from workloads.compute import PIPELINE
from workloads.model import Model
from workloads.operators.parameter import REPLICAS

WARM_UP = 1
"""Micro-batches for each pipeline rank until a pipeline is in its steady state: 1F1B is after one."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated step time *seconds* (None: not estimated), and the *need* of memory of the tightest GPU."""

    seconds: float | None
    need: MemoryNeed


class Estimator:
    """Estimates of *scenario* and of its variants: scenarios that differ in `parallelism` and `training` only."""

    def __init__(self, scenario: BuiltScenario) -> None:
        self.scenario = scenario
        self._networks: dict[tuple[str, ...], Transfers] = {}
        self._models: dict[Hashable, Model] = {}
        self._shares: dict[Hashable, Model] = {}
        self._priced: dict[Hashable, Model] = {}
        self._pipelines: dict[Hashable, PipelineFacts] = {}
        self._groups: dict[Hashable, tuple[Rows, ...]] = {}

    def estimate(self, variant: BuiltScenario, within: float = inf) -> Estimate:
        """Return the estimate of *variant*; only that of its memory if that is more than *within* bytes.

        Raises `ScenarioError` if it cannot be scheduled.
        """
        micro_batches = variant.derived.micro_batches
        numbers = self._few(variant) or (micro_batches,)
        last = self._schedule(variant, numbers[-1])
        network = self._network(variant.derived)
        need = memory_need(variant, last, network=network.communicator)
        if need.nbytes > within:
            return Estimate(None, need)
        seconds = self._timeline(last, variant).step_time
        if len(numbers) > 1:
            first = self._timeline(self._schedule(variant, numbers[0]), variant).step_time
            more = (micro_batches - numbers[1]) / (numbers[1] - numbers[0])
            seconds += more * (seconds - first)
        return Estimate(seconds, need)

    def _few(self, variant: BuiltScenario) -> tuple[int, int] | None:
        """Return two numbers of micro-batches in the steady state; None if all are executed."""
        stages, count = variant.specification.parallelism.pp, variant.derived.micro_batches
        pipeline = self.pipeline(variant.specification)
        if pipeline.asynchronous or pipeline.grows or variant.derived.by_stage:
            return None
        first = WARM_UP * stages + count % stages
        second = first + stages
        return (first, second) if count > first + second else None

    def pipeline(self, specification: Specification) -> PipelineFacts:
        """Return the facts of the pipeline order."""
        parallelism, training = specification.parallelism, specification.training
        assert training is not None
        recompute = training.recompute_method == "full" and parallelism.recomputes_stages
        key = parallelism.schedule, parallelism.pp, parallelism.virtual_stages, recompute
        if key not in self._pipelines:
            self._pipelines[key] = pipeline_facts(parallelism, recompute)
        return self._pipelines[key]

    def _schedule(self, variant: BuiltScenario, micro_batches: int) -> Schedule:
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
        network = self._network(variant.derived)
        communicator, classes = network.communicator, Representatives(schedule, network)
        pricing = Pricing(schedule, communicator.cluster, communicator.devices, variant.software, Variation())
        setup = Setup(schedule, classes, pricing, Matching(schedule))
        if numba_fault():
            from simulator.engine.reference import run as reference

            outcome = reference(setup)
        else:
            from simulator.engine.execution import run

            outcome = run(setup)
        return Timeline(schedule, communicator.cluster, outcome.columns, classes.representative, communicator.devices)

    def _network(self, derived: Derived) -> Transfers:
        if derived.devices not in self._networks:
            network = network_of(self.scenario.specification, self.scenario.cluster(), derived.devices)
            self._networks[derived.devices] = Transfers(network)
        return self._networks[derived.devices]

    # Layers.

    def _model(self, variant: BuiltScenario) -> tuple[Hashable, Model]:
        """Return what the model of *variant* depends on, and the model, shared by all variants that agree in that."""
        training = variant.specification.training
        assert training is not None
        casts = variant.derived.micro_batches if isinstance(training.precision, PrecisionByOperator) else 0
        key = variant.stack, str(training.precision), casts
        if key not in self._models:
            assert variant.model is not None
            self._models[key] = variant.model
        return key, self._models[key]

    def share(self, variant: BuiltScenario) -> tuple[Hashable, Model]:
        """Return what the model of one rank of *variant* depends on, and that model."""
        parts = variant.specification.parallelism.parts
        inner = tuple(repr(part) for part in parts.values() if part.axis not in (REPLICAS, PIPELINE))
        own, model = self._model(variant)
        key = own, inner
        if key not in self._shares:
            self._shares[key] = model_share(model, parts, variant.document)
        return key, self._shares[key]

    def priced_share(self, variant: BuiltScenario) -> Model:
        """Return the model of one rank of *variant* with priced layers, in the groups of its layouts."""
        derived = variant.derived
        phases = PHASES if self.pipeline(variant.specification).splits else PHASES[:2]
        layout = derived.layouts[0]
        axes = tuple(axis for axis in layout.degrees if axis not in (REPLICAS, PIPELINE))
        degrees = tuple(layout.degrees.items())
        if (degrees, axes) not in self._groups:
            self._groups[degrees, axes] = tuple(layout.groups(axis) for axis in axes)
        inner = self._groups[degrees, axes]
        own, share = self.share(variant)
        key = own, derived.micro_batch_size, phases, inner, derived.devices
        if key not in self._priced:
            self._priced[key] = self._price(variant, share, phases)
        return self._priced[key]

    def _price(self, variant: BuiltScenario, share: Model, phases: tuple[str, ...]) -> Model:
        """Return *share* with the duration of each of *phases*, from one simulation of all its distinct layers."""
        parts = list(variant.specification.parallelism.parts.values())
        samples = variant.derived.micro_batch_size
        layers = distinct_layers(share)
        program = probe(list(layers.values()), samples, overlaps(parts, variant.software), phases)
        schedule = probed(program, variant.derived, parts)
        seconds, buffers = by_phase(schedule.programs[0], self._timeline(schedule, variant))
        made = {key: priced(layer, samples, seconds[layer.name], buffers[layer.name]) for key, layer in layers.items()}
        return of_priced_layers(share, made)
