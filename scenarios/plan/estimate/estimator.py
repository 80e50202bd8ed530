"""The estimate of a scenario: its step time and its memory, from prices that candidates share.

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
from scenarios.build.clocks import at_slowest_clock
from scenarios.build.derived import Derived
from scenarios.build.library import communication_library
from scenarios.build.probe import PHASES, by_phase, distinct_layers, overlaps, probe, probed
from scenarios.build.schedule import model_share, schedule_of_share
from scenarios.plan.estimate.layers import of_priced_layers, priced
from scenarios.plan.estimate.pipelines import PipelineFacts, pipeline_facts
from scenarios.plan.estimate.representatives import Representatives
from scenarios.plan.estimate.transfers import Transfers
from scenarios.results.memory_need import MemoryNeed, memory_need
from scenarios.specification.specification import Specification
from simulator.engine.choice import numba_fault
from simulator.engine.pricing import Pricing
from simulator.engine.setup import Setup
from simulator.engine.variation import Variation
from simulator.network.transport.communicator import Communicator
from simulator.schedule import Schedule
from simulator.schedule.matching import Matching
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
    """Estimates of *scenario* and of scenarios that differ from it in `parallelism` and `training` only."""

    def __init__(self, scenario: BuiltScenario) -> None:
        self.scenario = scenario
        self._networks: dict[tuple[str, ...], Transfers] = {}
        self._shares: dict[Hashable, Model] = {}
        self._priced: dict[Hashable, Model] = {}
        self._pipelines: dict[Hashable, PipelineFacts] = {}
        self._groups: dict[Hashable, tuple[tuple[tuple[int, ...], ...], ...]] = {}

    def estimate(self, specification: Specification, derived: Derived, within: float = inf) -> Estimate:
        """Return the estimate of a scenario; only that of its memory if that is more than *within* bytes.

        Raises `ScenarioError` if it cannot be scheduled.
        """
        numbers = self._few(specification, derived) or (derived.micro_batches,)
        last = self._schedule(specification, derived, numbers[-1])
        need = self._need(last, derived)
        if need.nbytes > within:
            return Estimate(None, need)
        network = self._network(derived)
        seconds = self._timeline(last, network).step_time
        if len(numbers) > 1:
            first = self._timeline(self._schedule(specification, derived, numbers[0]), network).step_time
            more = (derived.micro_batches - numbers[1]) / (numbers[1] - numbers[0])
            seconds += more * (seconds - first)
        return Estimate(seconds, need)

    def _few(self, specification: Specification, derived: Derived) -> tuple[int, int] | None:
        """Return two numbers of micro-batches in the steady state; None if all are executed."""
        stages, count = specification.parallelism.pp, derived.micro_batches
        pipeline = self.pipeline(specification)
        if pipeline.asynchronous or pipeline.grows or derived.by_stage:
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

    def _schedule(self, specification: Specification, derived: Derived, micro_batches: int) -> Schedule:
        """Return the schedule of priced layers with so many micro-batches."""
        return schedule_of_share(
            specification,
            self.priced_share(specification, derived),
            self.scenario.software,
            replace(derived, micro_batches=micro_batches),
            self.scenario.document,
            self.scenario.cluster(),
        )

    def _need(self, schedule: Schedule, derived: Derived) -> MemoryNeed:
        communicator = self._network(derived).communicator
        return memory_need(self.scenario, schedule, devices=derived.devices, network=communicator)

    def _timeline(self, schedule: Schedule, network: Transfers) -> Timeline:
        communicator = network.communicator
        classes = Representatives(schedule, network)
        pricing = Pricing(schedule, communicator.cluster, communicator.devices, self.scenario.software, Variation())
        setup = Setup(schedule, classes, pricing, Matching(schedule))
        if numba_fault():
            from simulator.engine.reference import run
        else:
            from simulator.engine.execution import run
        outcome = run(setup)
        return Timeline(schedule, communicator.cluster, outcome.columns, classes.representative, communicator.devices)

    def _network(self, derived: Derived) -> Transfers:
        if derived.devices not in self._networks:
            network = self.scenario.specification.network
            cluster = at_slowest_clock(self.scenario.cluster(), derived.devices)
            self._networks[derived.devices] = Transfers(
                Communicator(
                    cluster, derived.devices, communication_library(network), network.fidelity, network.algorithms
                )
            )
        return self._networks[derived.devices]

    # Layers.

    def _inner(self, specification: Specification) -> tuple[str, ...]:
        parts = specification.parallelism.parts.values()
        return tuple(repr(part) for part in parts if part.axis not in (REPLICAS, PIPELINE))

    def _share(self, specification: Specification) -> Model:
        key = self._inner(specification)
        if key not in self._shares:
            assert self.scenario.model is not None
            self._shares[key] = model_share(
                self.scenario.model, specification.parallelism.parts, self.scenario.document
            )
        return self._shares[key]

    def priced_share(self, specification: Specification, derived: Derived) -> Model:
        """Return the model of one rank with priced layers, in the groups of the layouts of *derived*."""
        phases = PHASES if self.pipeline(specification).splits else PHASES[:2]
        layout = derived.layouts[0]
        axes = tuple(axis for axis in layout.degrees if axis not in (REPLICAS, PIPELINE))
        degrees = tuple(layout.degrees.items())
        if (degrees, axes) not in self._groups:
            self._groups[degrees, axes] = tuple(layout.groups(axis) for axis in axes)
        inner = self._groups[degrees, axes]
        key = self._inner(specification), derived.micro_batch_size, phases, inner, derived.devices
        if key not in self._priced:
            self._priced[key] = self._price(specification, derived, self._share(specification), phases)
        return self._priced[key]

    def _price(self, specification: Specification, derived: Derived, share: Model, phases: tuple[str, ...]) -> Model:
        """Return *share* with the duration of each of *phases*, from one simulation of all its distinct layers."""
        parts = list(specification.parallelism.parts.values())
        samples = derived.micro_batch_size
        layers = distinct_layers(share)
        program = probe(list(layers.values()), samples, overlaps(parts, self.scenario.software), phases)
        schedule = probed(program, derived, parts)
        timeline = self._timeline(schedule, self._network(derived))
        seconds, buffers = by_phase(schedule.programs[0], timeline)
        made = {key: priced(layer, samples, seconds[layer.name], buffers[layer.name]) for key, layer in layers.items()}
        return of_priced_layers(share, made)
