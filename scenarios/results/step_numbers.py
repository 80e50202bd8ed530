"""The numbers of a training step: its time and breakdown, throughput, utilisation, memory, traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import field
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any

from clustersim.scenarios.build.memory_need import MemoryNeed, memory_need
from clustersim.scenarios.results.efficiency import Utilisation, data_factor, trained_share, utilisation
from clustersim.scenarios.results.result import Result
from clustersim.scenarios.results.uncertainty import Uncertainty
from clustersim.simulator.analysis import memory, metrics, network_traffic
from clustersim.simulator.analysis.critical_path import COMPUTATION, CriticalPath, critical_path
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.hashing import distinct
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.units import show
from clustersim.workloads.composition import PARALLELISMS, RANK_ORDER
from clustersim.workloads.parallelism._parallelism import is_transformer

if TYPE_CHECKING:
    from clustersim.scenarios.build.input_pipeline import Loading
    from clustersim.scenarios.results.method_numbers import CompressionNumbers, ExpertLoad, FederatedRounds
    from clustersim.scenarios.specification.cost import PowerByState

AXES = tuple(cls.axis for cls in PARALLELISMS if cls.axis in RANK_ORDER)
"""Axes that every result names, also without such an axis in the mesh, so that scripts find the keys."""


@dataclass(frozen=True, repr=False)
class StepNumbers(Result):
    """A training step: its timeline, *wall_seconds* of the simulation, and the broadcast before the first step, s.

    *step_times* (s): those of all repeats; the first is that of the timeline. *blame*: in how many of the first repeats
    each rank has the most time on the critical path. *whole_step*: seconds of a step whose gradients are not
    compressed, if training begins with such steps.
    """

    _timeline: Timeline
    wall_seconds: float
    initial_broadcast: float = 0.0
    step_times: Sequence[float] = ()
    blame: Mapping[int, int] = field(default_factory=dict)
    whole_step: float = 0.0

    def in_short(self) -> str:
        """Return GPUs, step time, MFU and memory, e.g. ``4 GPUs, step 135 ms, 3.3 GB a GPU``."""
        mfu = self.summary()["mfu"]
        parts = [f"{len(self._timeline.gpu_ranks):,} GPUs", f"step {show(self._timeline.step_time, 'time')}"]
        parts += [f"MFU {mfu:.1%}"] if mfu else []
        parts.append(f"{show(self.need.nbytes, 'size', 3)} a GPU" + ("" if self.fits else ", which do not fit"))
        return ", ".join(parts)

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """The timelines by name."""
        return {self.scenario.name: self._timeline}

    @property
    def breakdowns(self) -> Mapping[str, Mapping[str, float]]:
        """The one breakdown, by name."""
        return {self.scenario.name: self.breakdown}

    @property
    def repeats(self) -> Mapping[str, Sequence[float]]:
        """The step times (s) by name, if there are repeats."""
        return {self.scenario.name: self.step_times} if len(self.step_times) > 1 else {}

    @cached_property
    def percentiles(self) -> dict[str, float]:
        """Percentiles of the step times by name, s; empty without repeats."""
        if len(self.step_times) < 2:
            return {}
        from clustersim.simulator.analysis.metrics import percentiles

        return percentiles(self.step_times)

    @cached_property
    def operators(self) -> dict[str, Any]:
        """Time, FLOPs, bytes and saved activations of all operations, as ``clustersim show operators --json`` has them.

        Raises `SimulatorError` for a replay.
        """
        from clustersim.scenarios.results.operator_profile import profile, summary

        return summary(profile(self.scenario, self._timeline))

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """Seconds of the step by part, the mean over the GPU ranks."""
        return metrics.breakdown(self._timeline)

    @cached_property
    def critical(self) -> CriticalPath | None:
        """The critical path; None if the run is too large to keep every span."""
        return critical_path(self._timeline) if self._timeline.totals is None else None

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """The uncertainty of the step time."""
        return Uncertainty(self.scenario, self._timeline.schedule, self._timeline.step_time)

    @cached_property
    def experts(self) -> ExpertLoad | None:
        """The load of the experts; None if the model has none."""
        if self.scenario.model is None or not is_transformer(self.scenario.model):
            return None
        from clustersim.scenarios.results.method_numbers import expert_load

        return expert_load(self.scenario)

    @cached_property
    def compression(self) -> CompressionNumbers | None:
        """What the compression of gradients saves and costs; None without one."""
        if getattr(self.scenario.specification.parallelism.data, "compression", None) is None:
            return None
        from clustersim.scenarios.results.method_numbers import compression

        return compression(self._timeline, self.steps)

    @cached_property
    def federated(self) -> FederatedRounds | None:
        """The rounds of federated learning; None without them, or if the run is too large to keep every span."""
        if self.scenario.specification.parallelism.data.method != "federated" or self._timeline.totals is not None:
            return None
        from clustersim.scenarios.results.method_numbers import federated_rounds

        return federated_rounds(self._timeline)

    @property
    def steps(self) -> float:
        """Steps of the whole training; 0 if it is not known."""
        training, model = self.scenario.specification.training, self.scenario.model
        assert training is not None
        assert model is not None
        samples = training.samples or (training.tokens or 0.0) / (model.tokens_per_sample or 1)
        return samples / (training.global_batch_size * trained_share(self.scenario, self._timeline.schedule))

    @cached_property
    def outside(self) -> list[str]:
        """What of the step is outside the calibrated range, a line each."""
        return self.uncertainty.outside()

    @cached_property
    def memory(self) -> memory.Memory:
        """The peak memory of the step."""
        return memory.peak(self._timeline)

    @cached_property
    def need(self) -> MemoryNeed:
        """What the tightest GPU needs: tensors and reserved memory."""
        return memory_need(self.scenario, self._timeline.schedule, self.memory, self._timeline.devices)

    @property
    def capacity(self) -> float:
        """Bytes of memory of the tightest GPU."""
        return self.need.capacity

    @property
    def reserved(self) -> Mapping[str, float]:
        """Bytes that the process on the tightest GPU holds beyond its tensors."""
        return self.need.reserved

    @property
    def fits(self) -> bool:
        """True if every GPU in use has the memory that it needs, reserved memory included."""
        return self.need.fits

    @cached_property
    def _gpus(self) -> dict[Accelerator, int]:
        """The types of the GPUs in use, with their counts."""
        return self.scenario.cluster().count(self._timeline.devices)

    @cached_property
    def utilisation(self) -> Utilisation:
        """Throughput, MFU and HFU of the step."""
        return utilisation(self.scenario, self._timeline.schedule, self._gpus, self._timeline.step_time)

    @property
    def peak(self) -> tuple[str, float]:
        """(precision, dense FLOP/s) of the fastest products of the step on the slowest GPU in use."""
        return self.utilisation.precision, self.utilisation.peak

    def summary(self) -> dict[str, Any]:
        """Return the numbers as `run --json` prints them."""
        return deepcopy(self._summary)

    @cached_property
    def _summary(self) -> dict[str, Any]:
        from clustersim.scenarios.results.operator_profile import layer_seconds
        from clustersim.simulator.analysis.network_traffic import cable_load

        model, timeline = self.scenario.model, self._timeline
        assert model is not None
        return {
            "name": self.scenario.name,
            **self._step_summary(),
            **self._first_steps_summary(),
            **({"step_time_percentiles_s": self.percentiles} if self.percentiles else {}),
            **({"ranks_to_blame": {str(rank): count for rank, count in self.blame.items()}} if self.blame else {}),
            **self._parts_summary(),
            "critical_path_s": self._critical_summary(),
            "initial_broadcast_s": self.initial_broadcast,
            **self.utilisation.summary(),
            "layer_s": layer_seconds(timeline, model),
            "memory": self._memory_summary(),
            **({"experts": self.experts.summary()} if self.experts else {}),
            **({"compression": self.compression.summary()} if self.compression else {}),
            **({"federated": self.federated.summary()} if self.federated else {}),
            "traffic_bytes": dict.fromkeys(AXES, 0.0) | network_traffic.by_axis(timeline),
            "link_traffic_bytes": network_traffic.by_link_kind(timeline),
            "link_utilisation": network_traffic.utilisation(timeline),
            **({"cables": load.summary()} if (load := cable_load(timeline)) else {}),
            **({"input": self._input} if self.loading else {}),
            **self._training_summary(),
            "outside_calibration": self.outside,
            "idle_gpus": len(self.scenario.derived.idle),
            "simulation": {
                "ranks": timeline.world_size,
                "representatives": len(timeline.distinct_ranks),
                "ops": timeline.ops,
                "wall_s": self.wall_seconds,
                "seed": self.scenario.specification.simulation.seed,
                "engine": timeline.engine,
            },
        }

    def key_figures(self) -> dict[str, Any]:
        """Return the numbers of `summary` by which runs are compared: time, its parts, utilisation, memory, training.

        They take a part of the time of all numbers, which need the critical path and the traffic of every link.
        """
        return {
            **self._step_summary(),
            **self._parts_summary(),
            **self.utilisation.summary(),
            "memory": self._memory_summary(),
            **self._training_summary(),
        }

    def _step_summary(self) -> dict[str, Any]:
        return {
            "step_time_s": self._timeline.step_time,
            "step_time_interval_s": list(self.uncertainty.interval or ()) or None,
        }

    def _parts_summary(self) -> dict[str, Any]:
        return {
            "breakdown_s": _in_order(self.breakdown),
            "bubble_fraction": metrics.bubble_fraction(self.breakdown),
        }

    def _training_summary(self) -> dict[str, Any]:
        training = self.scenario.specification.training
        assert training is not None
        return {"training": self.whole_training()} if training.tokens or training.samples else {}

    def _first_steps_summary(self) -> dict[str, Any]:
        if self.first_steps is None:
            return {}
        count, seconds = self.first_steps
        return {"first_steps": {"count": count, "step_time_s": seconds}}

    def _critical_summary(self) -> dict[str, float] | None:
        if self.critical is None:
            return None
        seconds = self.critical.by_kind()
        computation = {kind: seconds[kind] for kind in COMPUTATION}
        return computation | dict.fromkeys(AXES, 0.0) | seconds

    def _memory_summary(self) -> dict[str, Any]:
        peak = self.memory.peak
        categories = ("parameters", "gradients", "optimizer", "activations", "buffers")
        return {
            "peak_bytes": peak.nbytes,
            "peak_rank": peak.rank,
            "allocator_bytes": peak.nbytes + self.reserved.get("fragmentation", 0.0),
            "reserved_bytes": sum(self.reserved.values()),
            "device_bytes": peak.nbytes + sum(self.reserved.values()),
            "capacity_bytes": self.capacity if isfinite(self.capacity) else None,
            "fits": self.fits,
            "by_category_bytes": {name: float(peak.by_category.get(name, 0.0)) for name in categories},
            "stage_peak_bytes": list(self.memory.stages),
            "host_peak_bytes": self.memory.host_bytes,
        }

    def whole_training(self) -> dict[str, float | None]:
        """Return days, GPU-hours, energy, cost and CO2 of training on all tokens or samples; None if not known.

        With a critical batch size, ``days_to_loss``: until the loss that a small batch reaches with these tokens.
        """
        from clustersim.scenarios.specification.cost import account

        specification, model = self.scenario.specification, self.scenario.model
        training = specification.training
        assert training is not None
        assert model is not None
        step = self._timeline.step_time
        wait = self.loading.wait(step) if self.loading else 0.0
        steps = self.steps
        first, each = self.first_steps or (0, 0.0)
        seconds = steps * (step + wait) + min(first, steps) * (each - step)
        watts = self.power
        busy = seconds * step / (step + wait) if step else 0.0
        joules = watts.of_step(self.breakdown) * busy + watts.idle * (seconds - busy) if watts else None
        paid = account(seconds, len(self._timeline.gpu_ranks), joules, specification.cost)
        if training.critical_batch_size is None:
            return paid
        batch = training.global_batch_size * (model.tokens_per_sample or 1)
        return {**paid, "days_to_loss": (paid["days"] or 0.0) * data_factor(batch, training.critical_batch_size)}

    @property
    def first_steps(self) -> tuple[int, float] | None:
        """How many steps at the begin of training are of another kind than the rest, and how long each takes, s."""
        if self.whole_step and self.compression:
            return round(self.compression.warm_up * self.steps), self.whole_step
        count = self.scenario.specification.parallelism.data.first_steps
        return (count, self._timeline.window[0]) if count and self._timeline.schedule.batches > 1 else None

    @cached_property
    def loading(self) -> Loading | None:
        """The loading of a step's samples; None if nothing is said of it."""
        from clustersim.scenarios.build.input_pipeline import loading

        return loading(self.scenario)

    @property
    def _input(self) -> dict[str, float]:
        assert self.loading is not None
        step = self._timeline.step_time
        return {"bytes": self.loading.nbytes, "load_s": self.loading.seconds, "wait_s": self.loading.wait(step)}

    @cached_property
    def power(self) -> PowerByState | None:
        """Watts of the GPUs in use and their nodes by state; None if no GPU's power is known."""
        from clustersim.scenarios.specification.cost import power

        cluster, timeline = self.scenario.cluster(), self._timeline
        servers = cluster.servers(cluster.numbers(timeline.devices)[timeline.on_gpu])
        return power(self._gpus, len(distinct(servers)), self.scenario.specification.cost)


def _in_order(breakdown: Mapping[str, float]) -> dict[str, float]:
    """Return *breakdown* with all `AXES`: computation first, then communication, copies and the bubble."""
    ends = {"copy": breakdown["copy"], "bubble": breakdown["bubble"]}
    parts = {name: breakdown[name] for name in ("compute", "recompute", "optimizer")}
    parts |= {f"exposed_{axis}": 0.0 for axis in AXES}
    return parts | {name: seconds for name, seconds in breakdown.items() if name not in ends} | ends
