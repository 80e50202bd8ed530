"""The estimate of a scenario: its step time and its memory, from prices that candidates share.

Each candidate is a scenario with its own software stack and precision, as `run` takes them.

The schedule is made by the passes of the scenario itself, on priced layers (`prices`), so it has the same
pipeline order, buckets, updates and allocations. One rank of each program is executed by the engine on transfers of
known duration. Of many micro-batches only a few are executed: in the steady state of a pipeline
each further one adds the same time and no memory. An order that holds more activations the more micro-batches there
are, such as GPipe's, has no steady state: all of them are executed.

Facts of a pipeline order that do not depend on the number of micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from math import inf
from typing import Any, TypeVar, cast

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.derived import Derived
from clustersim.scenarios.build.layer_probe import AGAIN, PHASES, by_phase, distinct_layers, overlaps, probe, probed
from clustersim.scenarios.build.memory_need import MemoryNeed, memory_need
from clustersim.scenarios.build.network import network_of
from clustersim.scenarios.build.schedule import model_share, schedule_of_share
from clustersim.scenarios.search.prices import LayerPrice, Representatives, Transfers, of_priced_layers, priced
from clustersim.scenarios.specification.parallelism import ParallelismSection
from clustersim.scenarios.specification.specification import Specification
from clustersim.scenarios.specification.training import PrecisionByOperator
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.engine.pricing import Pricing, Variation
from clustersim.simulator.engine.setup import Setup
from clustersim.simulator.engine_choice import numba_fault
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.matching import Matching
from clustersim.simulator.schedule.pipeline_order import Action, Order
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.memory.compute import PIPELINE
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.operators.stages import stages_of

STEADY = 2
"""Micro-batches for each pipeline rank with which an order reaches its steady state: 1F1B after 1, interleaved after
1 + 1/v."""


@dataclass(frozen=True)
class PipelineFacts:
    """What of a pipeline order does not depend on the number of micro-batches.

    *stages*: those of each rank. *in_flight*: the most forward passes of each rank without the end of their backward
    passes. *phases* of a micro-batch without recomputation; *splits*: backward passes are divided into I and W.
    *grows*: the more micro-batches, the more are in flight. *asynchronous*: it updates weights within a batch. *kept*:
    by stage that the order recomputes, how many micro-batches are not recomputed.
    """

    stages: Sequence[Sequence[int]]
    in_flight: Sequence[int]
    phases: str
    splits: bool
    grows: bool
    asynchronous: bool = False
    kept: Mapping[int, int] = field(default_factory=dict)


def pipeline_facts(parallelism: ParallelismSection, recompute: bool) -> PipelineFacts:
    """Return what the order of *parallelism* is like; *recompute*: it recomputes whole stages."""
    try:
        few, more = (parallelism.order(n * parallelism.pp, recompute=recompute) for n in (STEADY, STEADY + 1))
    except ScheduleError:
        # an order for another number of micro-batches; the schedule will tell
        return PipelineFacts([[0]], [0], "FB", False, True)
    phases = {action.phase for row in few.rows for action in row} & set("FBIW")
    return PipelineFacts(
        [sorted({action.stage for action in row}) for row in few.rows],
        [_in_flight(row) for row in few.rows],
        "".join(sorted(phases)),
        "I" in phases,
        max(map(_in_flight, more.rows)) > max(map(_in_flight, few.rows)),
        few.asynchronous,
        dict(_kept(few).items() & _kept(more).items()),
    )


def _kept(order: Order) -> dict[int, int]:
    """Return by stage that *order* recomputes how many forward passes are not run again."""
    forward, again = (Counter(a.stage for row in order.rows for a in row if a.phase == phase) for phase in "FR")
    return {stage: forward[stage] - count for stage, count in again.items()}


def _in_flight(row: Sequence[Action]) -> int:
    most = running = 0
    for action in row:
        running += (action.phase == "F") - (action.phase in "BI")
        most = max(most, running)
    return most


T = TypeVar("T")

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
        self._known: dict[Hashable, Any] = {}

    def once(self, what: str, on: Hashable, make: Callable[[], T]) -> T:
        """Return what *make* returns, made once for *what* and all that it depends *on*.

        It is kept as long as the estimator, so the ``id`` of something made so may stand in *on* of something else.
        """
        key = what, on
        if key not in self._known:
            self._known[key] = make()
        return cast("T", self._known[key])

    def estimate(self, variant: BuiltScenario, within: float = inf) -> Estimate:
        """Return the estimate of *variant*; only that of its memory if that is more than *within* bytes.

        Raises `ScenarioError` if it cannot be scheduled.
        """
        micro_batches = variant.derived.micro_batches
        numbers = self._few(variant) or (micro_batches,)
        last = self.schedule(variant, numbers[-1])
        network = self.network(variant.derived)
        need = memory_need(variant, last, network=network.communicator)
        if need.nbytes > within:
            return Estimate(None, need)
        seconds = self._timeline(last, variant).step_time
        if len(numbers) > 1:
            first = self._timeline(self.schedule(variant, numbers[0]), variant).step_time
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
        setup = Setup(schedule, classes, pricing, Matching(schedule))
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

    # Prices of layers, by their `content`.

    def prices(self, variant: BuiltScenario) -> Mapping[Hashable, LayerPrice]:
        """Return the price of each distinct layer of the `share` of *variant*, from one simulation of them all."""
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
        schedule = probed(hosted, variant.derived, parts)
        seconds, buffers = by_phase(schedule.programs[0], self._timeline(schedule, variant))
        return {key: LayerPrice(seconds[layer.name], buffers[layer.name]) for key, layer in layers.items()}

    def computing(self, variant: BuiltScenario) -> Mapping[Hashable, LayerPrice]:
        """Return a lower bound of the price of each distinct layer: its kernels without launches and exchanges.

        The computations of a rank run one after the other, whatever its exchanges run beside.
        """
        derived, share, software = variant.derived, self.share(variant), variant.software
        device = derived.devices[0]

        def made() -> Mapping[Hashable, LayerPrice]:
            gpu = self.network(derived).communicator.cluster.accelerator(device)
            samples = derived.micro_batch_size

            def seconds(kernels: Iterable[Kernel]) -> float:
                return sum(gpu.kernel_seconds(kernel, software) for kernel in kernels)

            def price(layer: Layer) -> LayerPrice:
                found = {
                    phase: sum(seconds(segment.kernels) for segment in layer.segments(phase, samples))
                    for phase in "FIW"
                }
                # a whole backward pass has the kernels of both its halves
                again = seconds(layer.recomputable_forward(samples))
                return LayerPrice({**found, "B": found["I"] + found["W"], AGAIN: again})

            return {key: price(layer) for key, layer in distinct_layers(share).items()}

        return self.once("computing", (id(share), derived.micro_batch_size, device), made)


def _recomputes_layers(variant: BuiltScenario) -> bool:
    training = variant.specification.training
    return training is not None and training.recompute_method == "full"
