"""Rows from published runs: each expectation of a scenario, predicted by a rerun with other parameters. The name of a
file of measurements says which scenario reads it or repeats its figures. A rerun changes entries of the catalogue
in memory, not the files.

A parameter names the entries that have its value, such as ``clustersim.topologies.gpus.a100_80gb:k_half``. A rerun
changes the entries in memory, not the files.

The name of a file of measurements says which scenario reads it or repeats its figures; each expectation of that
scenario is a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path

from clustersim.scenarios.accuracy.robust_fit import FitRow, Parameter, Values
from clustersim.scenarios.build.derived import at_clock_of_longest_stage, at_slowest_clock
from clustersim.scenarios.build.network import library_of
from clustersim.scenarios.build.schedule import training_schedule
from clustersim.scenarios.results.expectations import is_duration
from clustersim.scenarios.results.operator_profile import layer_seconds
from clustersim.scenarios.results.uncertainty import Extent, calibrated_range, distinct, joined
from clustersim.scenarios.run.running import variation
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.analysis import metrics
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.schedule.ops import Compute, Recv
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.catalogue import GPUS, device
from clustersim.workloads.software_stack import holds, specification, tensors_by_stage

SOFTWARE = "clustersim.workloads.software"


def landed(parameters: Sequence[Parameter], values: Values, place: str) -> dict[str, float]:
    """Return the values that go to *place*, ``package.file``, by key.

    >>> a100 = "clustersim.topologies.gpus.a100_80gb"
    >>> landed([Parameter("x", 1, 0, 2, "", "", (f"{a100}:k_half",))], {"x": 3}, a100)
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
        network, schedule = scenario.specification.network, self._schedule(software)
        timeline = simulate(
            schedule,
            at_clock_of_longest_stage(schedule, self._cluster(values), scenario.derived.devices, software),
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


@dataclass(frozen=True)
class Publication:
    """The *scenario* that has the runs of a file, and the relative *noise* of the measurements.

    *left_out*: words in the names of runs that are not rows, and the reasons.
    """

    scenario: str
    noise: float
    left_out: Mapping[str, str]


PUBLICATIONS: Mapping[str, Publication] = {
    "korthikanti_table4_layer_timing_22B": Publication("korthikanti_22b_layer", 0.01, {}),
    "fsdp_mpt_llmfoundry": Publication("fsdp_mpt_a100_40gb", 0.03, {}),
    "vtrain_multi_node_measured": Publication(
        "vtrain_3_6b_64a100",
        0.03,
        {"tp16": "limited by the network between nodes, which the fit of the transport covers"},
    ),
    "vtrain_layer_times": Publication("vtrain_layers", 0.10, {}),
    "vtrain_single_node_steps": Publication("vtrain_single_node", 0.10, {}),
    "zero_bubble_table4": Publication(
        "zero_bubble",
        0.02,
        {
            "ZB-2p": "a searched order, simulated as another",
            **{f"{size}B": "in no file of measurements, evaluated only" for size in (6.2, 14.6, 28.3)},
        },
    ),
    "megatron_sc21_table1_weak_scaling": Publication(
        "megatron_sc21_weak_scaling",
        0.03,
        dict.fromkeys(("39.1B", "76.1B", "145.6B", "310.1B", "529.6B", "1008B"), "too large for a fit, evaluated only"),
    ),
    "dlperf_gpt_v100": Publication(
        "dlperf_gpt_v100",
        0.05,
        {
            **dict.fromkeys(("DP_16", "1x16", "PP"), "limited by the network between nodes"),
            "2D_8x1x1": "the same run as DP_8x1x1",
        },
    ),
    "dlperf_ddp_v100": Publication(
        "dlperf_ddp_v100",
        0.05,
        {
            "resnet50": "convolutions, which the layer profiles determine; evaluated only",
            "each of 32": "limited by the network between nodes",
        },
    ),
}
"""By the stem of the file's name. Noise: rounding to the printed digits (22B layer), otherwise the difference between
neighbouring runs; some of vTrain's layer times fall with the micro-batch where they must rise, and its single-node
steps are composed of such layer times."""

ON_V100 = ("dlperf_gpt_v100", "dlperf_ddp_v100")
"""The files that were measured on V100."""


def rows(file: Path, parameters: Sequence[Parameter]) -> list[FitRow]:
    """Return the rows of *file*. Raises `CalibrationError` if its name is unknown, `ScenarioError` if it is bad."""
    if file.stem not in PUBLICATIONS:
        raise CalibrationError(f"{file}: no published scenario reads it; there are those for {', '.join(PUBLICATIONS)}")
    publication = PUBLICATIONS[file.stem]
    scenario = _reading(publication.scenario, file)
    return list(_rows(scenario, file.stem, publication, tuple(parameters)))


def covered(file: Path) -> dict[str, Extent]:
    """Return the calibrated range of the rows of *file*."""
    publication = PUBLICATIONS[file.stem]
    extents: dict[str, Extent] = {}
    for variant in _runs(_reading(publication.scenario, file), publication).values():
        extents = joined(extents, calibrated_range(distinct(variant.schedule())))
    return extents


def _runs(scenario: Scenario, publication: Publication) -> dict[str, Scenario]:
    """Return the runs that are rows, by name."""
    runs = scenario.variants or {scenario.name: scenario}
    return {name: run for name, run in runs.items() if not any(word in name for word in publication.left_out)}


def _reading(name: str, file: Path) -> Scenario:
    """Return the scenario *name*; *file* replaces its table if the table is a file of the same stem."""
    from clustersim.scenarios.specification.loading import located
    from clustersim.simulator.reading.yaml_and_json import read

    table = read(located(name)).data.get("table")
    outside = table is not None and Path(str(table["file"])).stem == file.stem
    return Scenario.load(name, {"table.file": str(file.resolve())} if outside else None)


def _rows(
    scenario: Scenario, data: str, publication: Publication, parameters: tuple[Parameter, ...]
) -> Iterator[FitRow]:
    for name, variant in _runs(scenario, publication).items():
        rerun = Rerun(variant, parameters)
        for key, expectation in variant.specification.expect.items():
            if key.startswith("memory") or not isinstance(expectation.value, float | int):
                continue
            yield FitRow(
                f"{name}, {key}" if key.startswith("layer_s") else name,
                _time(key, expectation.value),
                _prediction(rerun, key),
                groups(variant, data),
                rerun.uses,
                publication.noise,
                None if key.startswith("layer_s") else rerun.ratio,
            )


def _prediction(rerun: Rerun, key: str) -> Callable[[Values], float]:
    def predicted(values: Values) -> float:
        return _time(key, rerun.value(key, values))

    return predicted


def _time(key: str, value: float) -> float:
    """Return *value* if it is a duration; 1 / *value* if it is a rate."""
    return value if is_duration(key) else 1.0 / value


def groups(scenario: Scenario, data: str) -> dict[str, str | int]:
    """Return the groups of a run in the report: data, degrees and micro-batch size."""
    derived = scenario.derived
    return {
        "data": data,
        "tp": derived.degree("tp"),
        "pp": derived.degree("pp"),
        "dp": derived.replicas,
        "micro-batch": derived.micro_batch_size,
    }
