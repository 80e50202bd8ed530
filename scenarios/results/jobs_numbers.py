"""The numbers of several jobs on one cluster: each alone and together, the cables that they share, other placements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from statistics import fmean
from typing import Any

from clustersim.scenarios.build.memory_need import MemoryNeed
from clustersim.scenarios.results.result import Result
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.reading.dataclass import dataclass

WORTH = 0.01
"""A placement is advised if it shortens the steps by more, as a fraction of their time alone."""

SHOWN_STEPS = 2
"""Steps of the slowest job that the timeline shows."""


@dataclass(frozen=True)
class JobTimes:
    """A job on *nodes*, as texts, with *gpus*: seconds of a step *alone* and *together*.

    *steps*: how many were measured together. *steady*: the two halves of them took the same. *first_rank*: the number
    of its first rank in the common timeline. *memory*: what its fullest GPU needs at most; None for a collective.
    """

    nodes: tuple[str, ...]
    gpus: int
    start: float
    alone: float
    together: float
    steps: int
    steady: bool
    first_rank: int
    memory: MemoryNeed | None = None

    @property
    def slowdown(self) -> float:
        """Time of a step together over that alone; 1 for a job that takes no time."""
        return self.together / self.alone if self.alone else 1.0


@dataclass(frozen=True)
class Cable:
    """The link from *source* to *target*, and the share of its bandwidth that each job uses, by job.

    *alone*: over a step of the job alone. *together*: over a step beside the others.
    """

    source: str
    target: str
    alone: Mapping[str, float]
    together: Mapping[str, float]


@dataclass(frozen=True)
class Tier:
    """The *cables* of one kind that the same jobs share, fullest first.

    *wider*: seconds of a step of every job if each of them had *factor* times its bandwidth, simulated.
    """

    kind: str
    cables: tuple[Cable, ...]
    factor: int
    wider: Mapping[str, float]

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that share them."""
        return tuple(self.cables[0].alone)


@dataclass(frozen=True)
class Placed:
    """Another *placement* of all jobs that do not list their nodes: seconds of a step *alone* and *together* by job."""

    placement: str
    nodes: Mapping[str, tuple[str, ...]]
    alone: Mapping[str, float]
    together: Mapping[str, float]


@dataclass(frozen=True, repr=False)
class JobsNumbers(Result):
    """Several jobs on one cluster. *window*: the time (s) in which all jobs were measured."""

    _timeline: Timeline
    jobs: Mapping[str, JobTimes]
    tiers: Sequence[Tier]
    others: Sequence[Placed]
    window: tuple[float, float]
    wall_seconds: float = field(default=0.0)

    def in_short(self) -> str:
        """Return the slowdown of each job."""
        return ", ".join(f"{name} x {job.slowdown:.3g}" for name, job in self.jobs.items())

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """The timeline of all jobs together."""
        return {self.scenario.name: self._timeline}

    @property
    def fits(self) -> bool:
        """True if every GPU in use has the memory that it needs, by an upper bound."""
        return all(job.memory is None or job.memory.fits for job in self.jobs.values())

    @property
    def shown_window(self) -> tuple[float, float]:
        """The part of the window that its chart shows: `SHOWN_STEPS` of the slowest job (s)."""
        begin, end = self.window
        return begin, min(end, begin + SHOWN_STEPS * max(job.together for job in self.jobs.values()))

    @property
    def fairness(self) -> float:
        """Jain's index of the speeds of the jobs, each relative to itself alone: 1 if all are slowed down equally.

        Jain, Chiu and Hawe, DEC-TR-301 (1984).
        """
        speeds = [1.0 / job.slowdown for job in self.jobs.values()]
        return sum(speeds) ** 2 / (len(speeds) * sum(speed**2 for speed in speeds))

    def slowdown_by(self, tier: Tier, job: str) -> float:
        """The part of the slowdown of *job* that goes if the cables of *tier* are wide enough for all jobs.

        Wider cables also shorten a step that fills them alone; that does not count.
        """
        own = self.jobs[job]
        seconds = max(tier.wider[job], own.alone)
        return own.together / seconds if seconds else 1.0

    @property
    def best(self) -> Placed | None:
        """The placement with the least mean time of the steps, if it is shorter than the present one."""
        if not self.others:
            return None
        least = min(self.others, key=self._mean)
        present = fmean(job.slowdown for job in self.jobs.values())
        return least if self._mean(least) < present - WORTH else None

    def _mean(self, placed: Placed) -> float:
        """The mean over jobs of the step time, over that of the job alone where it stands now."""
        return fmean(placed.together[name] / (job.alone or 1.0) for name, job in self.jobs.items())

    def summary(self) -> dict[str, Any]:
        """Return the numbers as `run --json` prints them."""
        best = self.best
        return {
            "name": self.scenario.name,
            "jobs": {
                name: {
                    "gpus": job.gpus,
                    "nodes": list(job.nodes),
                    "start_s": job.start,
                    "step_time_alone_s": job.alone,
                    "step_time_s": job.together,
                    "slowdown": job.slowdown,
                    "steps_measured": job.steps,
                    "steady": job.steady,
                    **({"memory_bytes": job.memory.nbytes, "fits": job.memory.fits} if job.memory else {}),
                }
                for name, job in self.jobs.items()
            },
            "fairness": self.fairness,
            "shared_links": [
                {
                    "kind": tier.kind,
                    "jobs": list(tier.jobs),
                    "times_wider": tier.factor,
                    "step_time_if_wider_s": dict(tier.wider),
                    "slowdown": {name: self.slowdown_by(tier, name) for name in tier.jobs},
                    "cables": [
                        {"from": one.source, "to": one.target, "alone": dict(one.alone), "together": dict(one.together)}
                        for one in tier.cables
                    ],
                }
                for tier in self.tiers
            ],
            "placements": {
                one.placement: {
                    name: {
                        "nodes": list(one.nodes[name]),
                        "step_time_alone_s": one.alone[name],
                        "step_time_s": one.together[name],
                    }
                    for name in self.jobs
                }
                for one in self.others
            },
            "best_placement": best.placement if best else None,
            "simulation": {"engine": self._timeline.engine, "wall_s": self.wall_seconds},
        }
