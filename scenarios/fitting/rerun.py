"""A rerun simulates a scenario with other values of catalogue parameters; it is the prediction of a row.

A parameter names the entries that have its value, such as ``topologies.gpus.a100_80gb:k_half``. A rerun changes the
entries in memory, not the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from scenarios.build.clocks import at_slowest_clock
from scenarios.build.network import library_of
from scenarios.build.schedule import training_schedule
from scenarios.fitting.parameter import Parameter, Values
from scenarios.results.layer_time import layer_seconds
from scenarios.running import variation
from scenarios.scenario import Scenario
from simulator.accelerator import Accelerator, Software
from simulator.analysis import metrics
from simulator.cluster import Cluster
from simulator.engine.simulate import simulate
from simulator.errors import CalibrationError
from simulator.schedule import Compute, Program, Recv, Schedule
from simulator.timeline import Timeline
from topologies.catalogue import GPUS, device
from workloads.fixed_cost import tensors_by_stage
from workloads.stack import holds, specification

SOFTWARE = "workloads.software"


def landed(parameters: Sequence[Parameter], values: Values, place: str) -> dict[str, float]:
    """Return the values that go to *place*, ``package.file``, by key.

    >>> landed([Parameter("x", 1, 0, 2, "", "", ("topologies.gpus.a100_80gb:k_half",))], {"x": 3}, GPUS + ".a100_80gb")
    {'k_half': 3}
    """
    spots = [(spot, values[p.name]) for p in parameters if p.name in values for spot in p.lands]
    return {spot.partition(":")[2]: value for spot, value in spots if holds(place, spot)}


def _computing(program: Program, tensors: int, gpu: Accelerator, software: Software) -> float:
    """Return the seconds of *program*, which holds *tensors*, and of its host; measured durations are not counted."""
    seconds = software.load_seconds + tensors * software.host_seconds_per_tensor
    for ops, times in program.templates():
        for op in ops:
            if isinstance(op, Compute):
                kernels = [kernel for kernel in op.kernels if kernel.seconds is None]
                seconds += times * gpu.seconds(kernels, software)
            elif isinstance(op, Recv):
                seconds += times * software.host_seconds_per_message
    return seconds


@dataclass(frozen=True, eq=False)
class Rerun:
    """*scenario* with any values of *parameters*, which are those of its GPUs and its software stack."""

    scenario: Scenario
    parameters: tuple[Parameter, ...]
    _schedules: dict[tuple[float, float, float], Schedule] = field(init=False, repr=False, default_factory=dict)
    _steps: dict[tuple[float, ...], float] = field(init=False, repr=False, default_factory=dict)

    @cached_property
    def uses(self) -> frozenset[str]:
        """The names of the parameters that go to entries which the scenario uses."""
        places = {f"{SOFTWARE}.{self.scenario.stack}", *(f"{GPUS}.{a.name}" for a in self._gpus)}
        return frozenset(
            p.name for p in self.parameters if any(holds(place, spot) for place in places for spot in p.lands)
        )

    def value(self, key: str, values: Values) -> float:
        """Return the result's value of *key*: a step time, a layer's time, a rate or TFLOP/s."""
        timeline = self.timeline(values)
        training, model = self.scenario.specification.training, self.scenario.model
        assert training is not None
        assert model is not None
        head, _, rest = key.partition(".")
        if head == "layer_s":
            return layer_seconds(timeline, model)[rest]
        if key == "hardware_tflops_per_gpu":
            return metrics.flops_per_gpu(timeline)[1] / 1e12
        rates = {"samples_per_s": 1.0, "tokens_per_s": float(model.tokens_per_sample)}
        if key == "step_time_s":
            return timeline.step_time
        if key in rates:
            return training.global_batch_size * rates[key] / timeline.step_time
        raise CalibrationError(
            f"{self.scenario.name}: {key} cannot be fitted; these can: step_time_s, layer_s, {', '.join(rates)}"
        )

    def ratio(self, values: Values, base: Values) -> float:
        """Return the step time at *values* over that at *base*, to first order; *base* has been simulated.

        Only the computation of the busiest rank is priced again. With pipeline stages the whole step is taken to scale
        with it; else the difference is added to the step time.
        """
        now, then, step = self._busy(values), self._busy(base), self._steps[self._key(base)]
        return now / then if self.scenario.derived.degree("pp") > 1 else 1.0 + (now - then) / step

    def _key(self, values: Values) -> tuple[float, ...]:
        return tuple(values[name] for name in sorted(self.uses))

    def _busy(self, values: Values) -> float:
        """Return the seconds that the busiest rank computes in a step, with the fixed costs of the software stack."""
        software, cluster = self._software(values), self._cluster(values)
        gpu = cluster.accelerator(self.scenario.derived.devices[0])
        model = self.scenario.model
        assert model is not None
        programs = self.scenario.schedule().programs
        return max(_computing(one, sum(tensors_by_stage(one, model).values()), gpu, software) for one in programs)

    def timeline(self, values: Values) -> Timeline:
        """Return the simulated timeline at *values*."""
        scenario, software = self.scenario, self._software(values)
        network = scenario.specification.network
        timeline = simulate(
            self._schedule(software),
            self._cluster(values),
            transport=library_of(scenario.specification, scenario.cluster()),
            fidelity=network.fidelity,
            algorithms=network.algorithms,
            software=software,
            placement=scenario.derived.devices,
            variation=variation(scenario),
        )
        self._steps[self._key(values)] = timeline.step_time
        return timeline

    @cached_property
    def _gpus(self) -> list[Accelerator]:
        cluster = self.scenario.cluster()
        return list(dict.fromkeys(cluster.accelerator(gpu) for gpu in self.scenario.derived.devices))

    def _cluster(self, values: Values) -> Cluster:
        cluster = self.scenario.cluster()
        changed: Mapping[Accelerator, Accelerator] = {gpu: self._changed(gpu, values) for gpu in self._gpus}
        return at_slowest_clock(cluster.with_accelerators(changed), self.scenario.derived.devices)

    def _changed(self, gpu: Accelerator, values: Values) -> Accelerator:
        own = landed(self.parameters, values, f"{GPUS}.{gpu.name}")
        return device(GPUS, gpu.name).model_copy(update=own).accelerator() if own else gpu

    def _software(self, values: Values) -> Software:
        name = self.scenario.stack
        return specification(name).model_copy(update=landed(self.parameters, values, f"{SOFTWARE}.{name}")).build()

    def _schedule(self, software: Software) -> Schedule:
        key = software.host_seconds_per_tensor, software.load_seconds, software.host_seconds_per_message
        if key not in self._schedules:
            scenario = self.scenario
            assert scenario.model is not None
            self._schedules.clear()
            self._schedules[key] = training_schedule(
                scenario.specification,
                scenario.model,
                software,
                scenario.derived,
                scenario.document,
                scenario.cluster(),
            )
        return self._schedules[key]
