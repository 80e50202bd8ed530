"""The result of a replayed trace, with its report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clustersim.scenarios.real_traces.replay_schedule import TraceReplay
from clustersim.scenarios.results.result_kinds import PlottedResult
from clustersim.scenarios.results.titles import engine_line, heading
from clustersim.simulator.analysis import metrics
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.plain_text import indented, table
from clustersim.simulator.reading.units import show


@dataclass(frozen=True, repr=False)
class TraceResult(PlottedResult):
    """The step of a replayed trace on the cluster of the scenario."""

    _timeline: Timeline
    wall_seconds: float

    @property
    def replay(self) -> TraceReplay:
        """What was replayed."""
        replay = self.scenario.replay
        assert replay is not None
        return replay

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """The timeline by name."""
        return {self.scenario.name: self._timeline}

    @property
    def breakdowns(self) -> Mapping[str, Mapping[str, float]]:
        """Seconds of the step by part, by name."""
        return {self.scenario.name: metrics.breakdown(self._timeline)}

    def in_short(self) -> str:
        """Return the step time, and that of the trace."""
        traced = self.replay.step.seconds
        beside = f", {show(traced, 'time')} in the trace" if traced else ""
        return f"step {show(self._timeline.step_time, 'time')}{beside}"

    def summary(self) -> dict[str, Any]:
        """Return the numbers as `run --json` prints them."""
        replay, timeline = self.replay, self._timeline
        return {
            "name": self.scenario.name,
            "step_time_s": timeline.step_time,
            "breakdown_s": metrics.breakdown(timeline),
            "traffic_bytes": dict(timeline.axis_bytes),
            "trace": {
                "step_time_s": replay.step.seconds or None,
                "ranks": replay.step.world_size,
                "ranks_with_trace": len(replay.step.by_rank),
                "dp": replay.replicas.traced,
                "replayed_ranks": replay.replicas.world_size,
                "replayed_dp": replay.replicas.replicas,
                "gpu": replay.speed.source.name if replay.speed.source else None,
                "collectives": "measured" if replay.as_measured else "simulated",
            },
            "simulation": {"engine": timeline.engine, "wall_s": self.wall_seconds},
        }

    def report(self) -> str:
        """Return the text that `run` prints."""
        timeline, step = self._timeline, self.replay.step
        seconds = timeline.step_time
        traced = ""
        if step.seconds:
            traced = f" ({seconds / step.seconds - 1.0:+.1%} from {show(step.seconds, 'time')} in the trace)"
        rows = [
            [name.replace("_", " "), show(part, "time"), f"{part / seconds:.1%}" if seconds else ""]
            for name, part in metrics.breakdown(timeline).items()
            if part
        ]
        told = f"step time  {show(seconds, 'time')}{traced}\n{indented(table(rows, ['', '', ''], 'lrr'))}"
        return "\n\n".join([f"{heading(self.scenario)}\n{self._told()}", told, engine_line(timeline)])

    def _told(self) -> str:
        """Return what is replayed, and how."""
        replay = self.replay
        step, replicas, speed = replay.step, replay.replicas, replay.speed
        read = f"trace of {len(step.by_rank)} of {step.world_size} ranks"
        more = f", dp {replicas.traced} -> {replicas.replicas}" if replicas.replicas != replicas.traced else ""
        how = "take what they took in the trace" if replay.as_measured else "are simulated"
        gpu = "computation as measured"
        if speed.changes and speed.source is not None:
            gpu = f"kernels scaled by class from {speed.source.name} to {speed.target.name}"
        elif speed.source is None and step.on_gpu:
            gpu += "; the GPU of the trace is not known, workload.gpu names it"
        return f"{read}{more}; collectives {how}; {gpu}"
