"""The numbers of a queue: waiting, turnaround, use of the cluster, goodput and fragmentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from clustersim.scenarios.build.memory_need import MemoryNeed
from clustersim.scenarios.queue.jobs import JobRecord
from clustersim.scenarios.queue.simulation import QueueRun, QueueState
from clustersim.scenarios.results.result import Result
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.plain_text import table
from clustersim.simulator.reading.units import show_long

LATE = 1e-9
"""A start is later than promised if it is by a larger part of its time, which rounding does not explain."""


@dataclass(frozen=True)
class Effort:
    """How many *simulations* of steps there were, of how many *situations* of jobs beside others, in *wall_seconds*."""

    simulations: int
    situations: int
    wall_seconds: float


@dataclass(frozen=True, repr=False)
class QueueNumbers(Result):
    """What happened in a queue (*ran*) on nodes with so many *gpus*, each below one of the *leaves*.

    *memory*: what each kind of job needs at most.
    """

    ran: QueueRun
    gpus: Sequence[int]
    leaves: Sequence[int]
    memory: Mapping[str, MemoryNeed]
    effort: Effort

    def in_short(self) -> str:
        """Return the jobs that ended, the mean waiting time and the utilisation."""
        numbers = self.summary()["queue"]
        return (
            f"{numbers['ended']} jobs, waiting {numbers['waiting_s']['mean']:.4g} s, {numbers['utilisation']:z.1%} held"
        )

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """None: ops of jobs are simulated for their step times only."""
        return {}

    @property
    def fits(self) -> bool:
        """True if every GPU in use has the memory that it needs, by an upper bound."""
        return all(need.fits for need in self.memory.values())

    @property
    def records(self) -> Sequence[JobRecord]:
        """The jobs that arrived, by time."""
        return self.ran.records

    @property
    def moments(self) -> Sequence[QueueState]:
        """The moments at which something changed."""
        return self.ran.moments

    def of(self, number: Callable[[JobRecord], float | None]) -> list[float]:
        """Return the *number* of every job that has one."""
        return [value for record in self.records if (value := number(record)) is not None]

    @cached_property
    def durations(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The seconds from each moment to the next, the last one to the end."""
        times = np.array([*(moment.time for moment in self.moments), self.ran.end])
        return np.maximum(0.0, np.diff(times))

    def mean(self, number: Callable[[QueueState], float]) -> float:
        """Return the mean over time of *number*, from 0 to the end; 0 before the first moment."""
        values = np.array([number(moment) for moment in self.moments])
        return float(values @ self.durations) / self.ran.end if self.ran.end else 0.0

    @cached_property
    def gpu_seconds(self) -> dict[str, float]:
        """GPU-seconds by what became of them; their sum is all of the cluster until the end.

        useful: what jobs would have taken alone on as few leaves as possible. unused: GPUs of held nodes that the job
        does not use. placement: what longer ways between its nodes took. shared_links: what other jobs took. blocked:
        of free nodes while a job waits. free: of free nodes otherwise.
        """
        parts = dict.fromkeys(("useful", "placement", "shared_links", "unused", "blocked", "free"), 0.0)
        held = 0.0
        for record in self.records:
            if record.start is None:
                continue
            seconds = (self.ran.end if record.end is None else record.end) - record.start
            held += record.held * seconds
            parts["unused"] += (record.held - record.gpus) * seconds
            parts["useful"] += record.gpus * record.compact * record.done
            parts["placement"] += record.gpus * (record.alone - record.compact) * record.done
            parts["shared_links"] += record.gpus * (seconds - record.alone * record.done)
        # free nodes by their number, so that nodes of different sizes count alike
        idle = self.mean(lambda moment: 1.0 - moment.held / len(self.gpus))
        parts["blocked"] = (self.total - held) * self.blocked / idle if idle > 0 else 0.0
        parts["free"] = self.total - held - parts["blocked"]
        return parts

    @property
    def total(self) -> float:
        """GPU-seconds of the cluster until the end."""
        return sum(self.gpus) * self.ran.end

    @property
    def held(self) -> float:
        """GPU-seconds of the nodes that jobs held."""
        return sum(self.gpu_seconds[part] for part in ("useful", "placement", "shared_links", "unused"))

    @property
    def blocked(self) -> float:
        """The mean share of all nodes that are free while a job waits: the first one cannot use them."""
        nodes = len(self.gpus)
        return self.mean(lambda moment: (nodes - moment.held) / nodes if moment.head else 0.0)

    def fragmentation(self) -> dict[str, float]:
        """Return how free nodes lie that the first waiting job cannot use, and how spread jobs are."""
        nodes = len(self.gpus)
        waits = self.mean(lambda moment: bool(moment.head))
        enough = self.mean(lambda moment: 0 < moment.head <= nodes - moment.held)
        free = self.mean(lambda moment: nodes - moment.held if moment.head else 0)
        leaves = self.mean(lambda moment: moment.free_leaves if moment.head else 0)
        started = [record for record in self.records if record.start is not None]
        spread = [record.leaves > record.least_leaves for record in started]
        return {
            "time_head_waits": waits,
            "time_head_waits_beside_enough_free_nodes": enough,
            "free_nodes_while_head_waits": free / waits if waits else 0.0,
            "leaves_of_free_nodes_while_head_waits": leaves / waits if waits else 0.0,
            "blocked_share": self.blocked,
            "jobs_on_more_leaves_than_needed": float(np.mean(spread)) if spread else 0.0,
            "mean_leaves": float(np.mean([record.leaves for record in started])) if started else 0.0,
        }

    def summary(self) -> dict[str, Any]:
        """Return the numbers as `run --json` prints them."""
        hour, parts = 3600.0, self.gpu_seconds
        late = [
            record
            for record in self.records
            if record.start is not None and record.reserved is not None and record.start > record.reserved * (1 + LATE)
        ]
        section = self.scenario.specification.queue
        assert section is not None
        return {
            "name": self.scenario.name,
            "queue": {
                "policy": section.policy,
                "placement": section.placement,
                "arrived": len(self.records),
                "started": len(self.of(lambda one: one.start)),
                "ended": len(self.of(lambda one: one.end)),
                "makespan_s": self.ran.end,
                "waiting_s": statistics(self.of(lambda one: one.waiting)),
                "turnaround_s": statistics(self.of(lambda one: one.turnaround)),
                "bounded_slowdown": statistics(self.of(lambda one: one.bounded_slowdown)),
                "queue_length": self.mean(lambda moment: moment.waiting),
                "running_jobs": self.mean(lambda moment: moment.running),
                "utilisation": self.held / self.total if self.total else 0.0,
                "goodput": parts["useful"] / self.total if self.total else 0.0,
                "goodput_of_held": parts["useful"] / self.held if self.held else 0.0,
                "gpu_hours": {name: seconds / hour for name, seconds in parts.items()},
                "fragmentation": self.fragmentation(),
                "later_than_reserved": len(late),
                "jobs": [self.row(record) for record in self.records],
            },
            "memory": {"fits": self.fits},
            "simulation": {
                "steps_simulated": self.effort.simulations,
                "situations": self.effort.situations,
                "wall_s": self.effort.wall_seconds,
            },
        }

    def row(self, record: JobRecord) -> dict[str, Any]:
        """Return the numbers of one job."""
        job = record.submission
        ran = (self.ran.end if record.end is None else record.end) - record.start if record.start is not None else 0.0
        work = record.alone * record.done
        return {
            "name": job.name,
            "kind": job.kind or "duration",
            "nodes": job.nodes,
            "gpus": record.gpus,
            "arrival_s": job.arrival,
            "start_s": record.start,
            "end_s": record.end,
            "waiting_s": record.waiting,
            "run_time_s": record.run_time,
            "bounded_slowdown": record.bounded_slowdown,
            "slowdown_by_placement": record.alone / record.compact if record.compact else 1.0,
            "slowdown_by_shared_links": ran / work if work else 1.0,
            "leaves": record.leaves,
            "done": record.done,
            "node_numbers": list(record.nodes),
        }


def statistics(values: Sequence[float]) -> dict[str, float]:
    """Return mean, median, 95th percentile and maximum of *values*; zeros of none."""
    if not values:
        return dict.fromkeys(("mean", "median", "p95", "max"), 0.0)
    median, p95 = np.percentile(values, [50, 95])
    return {"mean": float(np.mean(values)), "median": float(median), "p95": float(p95), "max": float(max(values))}


def queues_table(results: Mapping[str, QueueNumbers]) -> str:
    """Return a table of the numbers of queues with a column for each of *results*."""
    every = {name: result.summary()["queue"] for name, result in results.items()}
    rows = [
        ["policy", *(one["policy"] for one in every.values())],
        ["placement", *(one["placement"] for one in every.values())],
        ["jobs that ended", *(f"{one['ended']:,} of {one['arrived']:,}" for one in every.values())],
        ["makespan", *(show_long(one["makespan_s"]) for one in every.values())],
    ]
    for label, key in (("waiting", "waiting_s"), ("turnaround", "turnaround_s")):
        for number in ("mean", "median", "p95"):
            rows.append([f"{label}, {number}", *(show_long(one[key][number]) for one in every.values())])
    rows.append(["bounded slowdown, mean", *(f"{one['bounded_slowdown']['mean']:.2f}" for one in every.values())])
    for label, key in (
        ("utilisation", "utilisation"),
        ("goodput", "goodput"),
        ("  of what is held", "goodput_of_held"),
    ):
        rows.append([label, *(f"{one[key]:z.1%}" for one in every.values())])
    for label, key in (
        ("free while a job waits", "blocked_share"),
        ("jobs on more leaves than needed", "jobs_on_more_leaves_than_needed"),
    ):
        rows.append([label, *(f"{one['fragmentation'][key]:z.1%}" for one in every.values())])
    return table(rows, ["", *every], "lr")
