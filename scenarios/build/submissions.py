"""The jobs that are submitted to a queue: the rows of a CSV file, or arrivals at random from a mix of kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil, isfinite

import numpy as np

from clustersim.scenarios.specification.queue import PoissonArrivals, Queue, QueuedJob
from clustersim.scenarios.specification.specification import ClusterJob
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import TableRow, read_rows
from clustersim.simulator.reading.quantities import LARGEST
from clustersim.simulator.reading.units import parse
from clustersim.simulator.reading.validation import near

NEEDED = {
    "arrival": "when a job is submitted, in s or with a unit",
    "job": "the name of a job of jobs (or a column duration, and nodes or gpus)",
    "steps": "the training steps of a job of jobs",
    "nodes": "how many nodes a job has (or a column gpus)",
}
"""Columns of a file of arrivals, and what they hold."""


@dataclass(frozen=True)
class Submission:
    """Job *number*, in order of arrival, called *name*, that is submitted at *arrival* (s) and needs *nodes*.

    *kind*: the job of ``jobs`` on so many nodes, empty for a plain duration. *work*: its steps, or its seconds. *gpus*:
    those that it uses, of all of its nodes; 0: as many as the kind has ranks. *limit*: the time limit that its user
    gave (s); None: none.
    """

    number: int
    name: str
    arrival: float
    nodes: int
    kind: str
    work: float
    gpus: int = 0
    limit: float | None = None


@dataclass(frozen=True)
class JobKind:
    """The job called *job* of ``jobs`` on *nodes*."""

    job: str
    nodes: int

    def label(self, jobs: Mapping[str, ClusterJob]) -> str:
        """Return its name in reports: that of the job, with the number of nodes if it is not that of *jobs*."""
        return self.job if jobs[self.job].nodes == self.nodes else f"{self.job} on {self.nodes}"


def submissions(
    queue: Queue, jobs: Mapping[str, ClusterJob], cluster: Cluster, document: Document
) -> tuple[list[Submission], dict[str, JobKind]]:
    """Return the jobs that arrive in *queue*, by time, and the kinds of *jobs* among them by their labels.

    Raises `ScenarioError`, with file and line or the key, for a job that is larger than *cluster* or cannot be read.
    """
    nodes = len(dict.fromkeys(map(cluster.node_of, cluster.gpus)))
    for name, job in jobs.items():
        if isinstance(job.nodes, int) and job.nodes > nodes:
            raise document.error(("jobs", name, "nodes"), f"{job.nodes} nodes are more than the {nodes} of the cluster")
    if isinstance(queue.arrivals, PoissonArrivals):
        return _at_random(queue.arrivals, jobs, nodes, document)
    return _of_file(_File(queue.arrivals, jobs, nodes, len(cluster.gpus) // nodes))


def _at_random(
    arrivals: PoissonArrivals, jobs: Mapping[str, ClusterJob], nodes: int, document: Document
) -> tuple[list[Submission], dict[str, JobKind]]:
    """Return the jobs of *arrivals*; times, kinds and factors have random streams of their own."""
    kinds: dict[str, JobKind] = {}
    labels: list[str] = []
    for place, one in enumerate(arrivals.mix):
        if one.nodes is not None and one.nodes > nodes:
            path = "queue", "arrivals", "mix", place, "nodes"
            raise document.error(path, f"{one.nodes} nodes are more than the {nodes} of the cluster")
        kind = JobKind(one.job, one.nodes or _count(jobs[one.job])) if one.job else None
        labels.append(kind.label(jobs) if kind else "")
        kinds |= {labels[-1]: kind} if kind else {}
    streams = [np.random.default_rng([arrivals.seed, stream]) for stream in range(3)]
    times = np.cumsum(streams[0].exponential(1.0 / arrivals.poisson, arrivals.jobs))
    weights = np.array([one.weight for one in arrivals.mix])
    chosen = streams[1].choice(len(weights), arrivals.jobs, p=weights / weights.sum())
    factors = np.ones(arrivals.jobs)
    for place, one in enumerate(arrivals.mix):
        own = np.flatnonzero(chosen == place)
        if one.variation is not None:
            factors[own] = one.variation.build().draw(streams[2], len(own))
    found = []
    for number, (time, place, factor) in enumerate(zip(times.tolist(), chosen.tolist(), factors.tolist(), strict=True)):
        one, label = arrivals.mix[place], labels[place]
        count = kinds[label].nodes if label else _count(one)
        found.append(Submission(number, f"job {number}", time, count, label, _work(one, factor)))
    return found, kinds


def _count(job: ClusterJob | QueuedJob) -> int:
    assert isinstance(job.nodes, int)  # checked with the sections
    return job.nodes


def _work(job: QueuedJob, factor: float) -> float:
    """Return the steps of *job*, whole ones, or its seconds, *factor* times the mean."""
    if job.steps is not None:
        return float(max(1, round(job.steps * factor)))
    assert job.duration is not None
    return job.duration * factor


@dataclass(frozen=True)
class _File:
    """A CSV file of arrivals at *path*, and what its rows refer to. *gpus*: of a node."""

    path: str
    jobs: Mapping[str, ClusterJob]
    nodes: int
    gpus: int

    def rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the line and the cells by column of each row. Raises `ScenarioError` for a missing column."""
        found = list(read_rows(self.path))
        header = [cell.strip() for cell in found[0].cells] if found else []
        needed = ["arrival"]
        needed += ["job"] if "duration" not in header else []
        needed += ["steps"] if "job" in header and "duration" not in header else []
        needed += ["nodes"] if "job" not in header and "gpus" not in header else []
        for column in needed:
            if column not in header:
                raise ScenarioError(f'{self.path}:1: needs a column "{column}": {NEEDED[column]}')
        if len(found) < 2:
            raise ScenarioError(f"{self.path}: has no row below its header, so no job arrives")
        for row in found[1:]:
            yield row.line, self._cells(header, row)

    def _cells(self, header: list[str], row: TableRow) -> dict[str, str]:
        if len(row.cells) > len(header):
            raise self.fault(row.line, f"has {len(row.cells)} cells, the header has {len(header)}")
        return {column: cell.strip() for column, cell in zip(header, row.cells, strict=False) if cell.strip()}

    def fault(self, line: int, message: str) -> ScenarioError:
        """Return the error that *message* is wrong in *line*."""
        return ScenarioError(f"{self.path}:{line}: {message}")

    def seconds(self, line: int, column: str, text: str, *, zero: bool = False) -> float:
        """Return the time *text* of *column*: a number of seconds, or one with its unit."""
        try:
            value = float(text)
        except ValueError:
            try:
                value = parse(text, "time")
            except ValueError:
                told = f'{column} must be a number of seconds, or one with its unit, e.g. "90 min", not {text}'
                raise self.fault(line, told) from None
        if not isfinite(value) or value < 0 or (value == 0 and not zero):
            raise self.fault(line, f"{column} must be {'at least' if zero else 'above'} 0, not {text}")
        if value > LARGEST["time"]:
            raise self.fault(line, f"{column} must be at most {LARGEST['time']:g} s, not {text}")
        return value

    def count(self, line: int, column: str, text: str) -> int:
        """Return the whole number *text* of *column*."""
        if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= 10**9:
            raise self.fault(line, f"{column} must be a whole number, at least 1, not {text}")
        return int(text)


def _of_file(file: _File) -> tuple[list[Submission], dict[str, JobKind]]:
    """Return the jobs of *file*, by time of arrival."""
    kinds: dict[str, JobKind] = {}
    found = [_of_row(file, line, cells, number, kinds) for number, (line, cells) in enumerate(file.rows())]
    found.sort(key=lambda one: one.arrival)
    return [replace(one, number=number) for number, one in enumerate(found)], kinds


def _of_row(file: _File, line: int, cells: Mapping[str, str], number: int, kinds: dict[str, JobKind]) -> Submission:
    """Return the job of a row; its kind is added to *kinds*."""
    if "arrival" not in cells:
        raise file.fault(line, f"needs arrival: {NEEDED['arrival']}")
    arrival = file.seconds(line, "arrival", cells["arrival"], zero=True)
    job, name = cells.get("job", ""), cells.get("name", f"job {number}")
    limit = file.seconds(line, "time_limit", cells["time_limit"]) if "time_limit" in cells else None
    if bool(job) == ("duration" in cells):
        raise file.fault(line, "needs a job of jobs with its steps, or a duration; one of both")
    if job and job not in file.jobs:
        hint = near(job, file.jobs)
        known = f"there are {', '.join(file.jobs)}" if file.jobs else "jobs has none"
        raise file.fault(line, f'there is no job "{job}"; {known}' + (f"; {hint}" if hint else ""))
    if job and "steps" not in cells:
        raise file.fault(line, f"needs steps: {NEEDED['steps']}")
    gpus = file.count(line, "gpus", cells["gpus"]) if "gpus" in cells else 0
    if "nodes" in cells:
        nodes = file.count(line, "nodes", cells["nodes"])
    elif gpus:
        nodes = ceil(gpus / file.gpus)
    elif job:
        nodes = _count(file.jobs[job])
    else:
        raise file.fault(line, f"needs nodes: {NEEDED['nodes']}")
    if nodes > file.nodes:
        wanted = f"{gpus} GPUs need {nodes} nodes, which" if gpus else f"{nodes} nodes"
        raise file.fault(line, f"{wanted} are more than the {file.nodes} of the cluster")
    if gpus > nodes * file.gpus:
        raise file.fault(line, f"{gpus} GPUs are more than the {nodes * file.gpus} of {nodes} nodes")
    if not job:
        return Submission(
            number, name, arrival, nodes, "", file.seconds(line, "duration", cells["duration"]), gpus, limit
        )
    kind = JobKind(job, nodes)
    kinds[kind.label(file.jobs)] = kind
    work = float(file.count(line, "steps", cells["steps"]))
    return Submission(number, name, arrival, nodes, kind.label(file.jobs), work, 0, limit)
