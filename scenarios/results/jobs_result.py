"""The results of several jobs on one cluster and of a queue of jobs, with their reports, tables and charts."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from math import inf
from statistics import fmean
from typing import Any

from clustersim.scenarios.build.description import cluster_title
from clustersim.scenarios.queue.jobs import JobRecord
from clustersim.scenarios.results.jobs_numbers import JobsNumbers
from clustersim.scenarios.results.queue_numbers import QueueNumbers
from clustersim.scenarios.results.result_kinds import PlottedResult
from clustersim.scenarios.results.titles import engine_line, title
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.plain_text import figure, indented, table
from clustersim.simulator.reading.units import show, show_long


@dataclass(frozen=True, repr=False)
class JobsResult(JobsNumbers, PlottedResult):
    """The result of several jobs; see `JobsNumbers` for its fields."""

    def report(self) -> str:
        """Return the text that `run` prints."""
        gpus = len(self.scenario.cluster().gpus)
        used = sum(job.gpus for job in self.jobs.values())
        parts = [
            f"{title(self.scenario)}\n{used} of {cluster_title(self.scenario, gpus)}, {len(self.jobs)} jobs",
            indented(self._times()),
            self._shared(),
            self._placements(),
            engine_line(self._timeline),
        ]
        return "\n\n".join(filter(None, parts))

    def _times(self) -> str:
        rows = [
            [
                name,
                str(job.gpus),
                ranges(job.nodes),
                show(job.alone, "time"),
                show(job.together, "time"),
                f"{job.slowdown:.3f} x" + ("" if job.steady else ", not steady"),
                "" if job.memory is None else job.memory.amount + ("" if job.memory.fits else ": DOES NOT FIT"),
            ]
            for name, job in self.jobs.items()
        ]
        head = ["job", "GPUs", "nodes", "step alone", "together", "slowdown", "memory at most"]
        return f"{table(rows, head, 'lrlrrrr')}\nfairness (Jain): {self.fairness:.3f}"

    def _shared(self) -> str:
        if not self.tiers:
            return "no two jobs share a link"
        rows = []
        for tier in self.tiers:
            full = tier.cables[0]
            shares = ", ".join(f"{name} {share:.0%}" for name, share in full.alone.items())
            lost = ", ".join(f"{name} {self.slowdown_by(tier, name):.3f} x" for name in tier.jobs)
            rows.append(
                [
                    f"{len(tier.cables)} {tier.kind}",
                    " + ".join(tier.jobs),
                    f"{full.source} to {full.target}",
                    shares,
                    f"{sum(full.together.values()):.0%}",
                    lost,
                ]
            )
        head = ["links", "shared by", "fullest", "use alone", "together", "slowdown by them"]
        told = "slowdown by them: step together over the step with them wide enough for all jobs, or over that alone"
        return f"shared links\n{indented(table(rows, head, 'llllrl'))}\n{indented(told)}"

    def _placements(self) -> str:
        if not self.others:
            return ""
        now = [show(job.together, "time") for job in self.jobs.values()]
        rows = [["as given", *now]]
        rows += [[one.placement, *(show(one.together[name], "time") for name in self.jobs)] for one in self.others]
        best, told = self.best, "no other placement of the nodes is faster"
        if best is not None:
            where = "; ".join(f"{name} on {ranges(nodes)}" for name, nodes in best.nodes.items())
            told = f"better: placement {best.placement}: {where}"
        return (
            f"step together by placement\n{indented(table(rows, ['', *self.jobs], 'l' + 'r' * len(self.jobs)))}\n{told}"
        )


def ranges(nodes: Sequence[str]) -> str:
    """Return names of nodes in short.

    >>> ranges(("0", "1", "2", "6", "gpu 9"))
    '0-2, 6, gpu 9'
    """
    found: list[list[str]] = []
    for node in nodes:
        if found and node.isdigit() and found[-1][-1].isdigit() and int(node) == int(found[-1][-1]) + 1:
            found[-1][1:] = [node]
        else:
            found.append([node])
    return ", ".join("-".join(run) for run in found)


MOST_ROWS = 20
"""Jobs that the report lists; more are in the table of the run and in --json."""

ROUNDING = 1e-9
"""Share of all GPU-hours from which on a part is told; below 0 where a job is faster on more leaves."""

PARTS = {
    "useful": "useful: what the jobs take alone, on as few leaves as possible",
    "placement": "longer steps because nodes lie further apart",
    "shared_links": "longer steps because jobs share links",
    "unused": "GPUs of held nodes that their job does not use",
    "blocked": "nodes that are free while a job waits",
    "free": "nodes that are free while none waits",
}


@dataclass(frozen=True, repr=False)
class QueueResult(QueueNumbers, PlottedResult):
    """The result of a queue; see `QueueNumbers` for its fields."""

    def report(self) -> str:
        """Return the text that `run` prints."""
        numbers = self.summary()["queue"]
        leaves = len(set(self.leaves))
        where = f"{len(self.gpus):,} nodes below {leaves} {'leaf' if leaves == 1 else 'leaves'}"
        how = f"policy {numbers['policy']}, placement {numbers['placement']}"
        head = f"{title(self.scenario)}\n{cluster_title(self.scenario, sum(self.gpus))}, {where}; {how}"
        parts = [head, indented(self._times(numbers)), self._use(numbers), self._fragmentation(numbers)]
        return "\n\n".join(filter(None, [*parts, self._kinds(), self._jobs(), self._effort()]))

    def _times(self, numbers: Mapping[str, Any]) -> str:
        still = numbers["started"] - numbers["ended"]
        told = f"{numbers['arrived']:,} jobs arrived, {numbers['ended']:,} ended in {show_long(self.ran.end)}"
        waiting = numbers["arrived"] - numbers["started"]
        told += f", {still:,} still run, {waiting:,} still wait" if still or waiting else ""
        names = ("mean", "median", "p95", "max")
        rows = [
            [name.replace("_", " "), *(show_long(numbers[f"{name}_s"][one]) for one in names)]
            for name in ("waiting", "turnaround")
        ]
        rows.append(["bounded slowdown", *(f"{numbers['bounded_slowdown'][one]:.2f}" for one in names)])
        return f"{told}\n{table(rows, ['', *names], 'lrrrr')}"

    def _use(self, numbers: Mapping[str, Any]) -> str:
        told = (
            f"utilisation {numbers['utilisation']:z.1%} of the GPU-hours are held by jobs; "
            f"goodput {numbers['goodput']:z.1%} of all, {numbers['goodput_of_held']:z.1%} of those held"
        )
        total = self.total or 1.0
        rows = [
            [text, figure(self.gpu_seconds[part] / 3600.0), f"{self.gpu_seconds[part] / total:z.1%}"]
            for part, text in PARTS.items()
            if part in ("useful", "free") or abs(self.gpu_seconds[part]) > ROUNDING * total
        ]
        return f"{told}\n{indented(table(rows, ['', 'GPU-hours', 'share'], 'lrr'))}"

    def _fragmentation(self, numbers: Mapping[str, Any]) -> str:
        own = numbers["fragmentation"]
        lines = [f"jobs wait {own['time_head_waits']:z.1%} of the time, {numbers['queue_length']:.3g} on the mean"]
        if own["time_head_waits"]:
            lines.append(
                f"meanwhile {own['free_nodes_while_head_waits']:.3g} nodes are free, below "
                f"{own['leaves_of_free_nodes_while_head_waits']:.3g} leaves, on the mean"
            )
        if own["time_head_waits_beside_enough_free_nodes"]:
            share = own["time_head_waits_beside_enough_free_nodes"]
            lines.append(
                f"{share:z.1%} of the time the first one waits though enough nodes are free: not below one leaf"
            )
        lines.append(f"{own['jobs_on_more_leaves_than_needed']:z.1%} of the jobs lie on more leaves than they need")
        if numbers["later_than_reserved"]:
            lines.append(
                f"{numbers['later_than_reserved']:,} jobs started later than backfill had promised: others ran for "
                "longer than their limits (queue.estimate, time_limit)"
            )
        return "fragmentation\n" + indented("\n".join(lines))

    def _kinds(self) -> str:
        rows = []
        for kind in dict.fromkeys(record.submission.kind for record in self.records):
            own = [self.row(one) for one in self.records if one.submission.kind == kind and one.start is not None]
            if not own:
                continue
            need = self.memory.get(kind)
            rows.append(
                [
                    kind or "(duration)",
                    f"{len(own):,}",
                    str(own[0]["nodes"]) if kind else "",
                    show_long(fmean(one["waiting_s"] for one in own)),
                    show_long(fmean(one["run_time_s"] for one in ended)) if (ended := _ended(own)) else "",
                    f"{fmean(one['slowdown_by_placement'] for one in own):.3f} x",
                    f"{fmean(one['slowdown_by_shared_links'] for one in own):.3f} x",
                    "" if need is None else need.amount + ("" if need.fits else ": DOES NOT FIT"),
                ]
            )
        head = ["kind", "started", "nodes", "waiting", "run time", "by placement", "by shared links", "memory at most"]
        told = "by kind of job, means; slowdown of steps by placement and by shared links"
        return f"{told}\n{indented(table(rows, head, 'lrrrrrrr'))}"

    def _jobs(self) -> str:
        shown = sorted(self.records, key=_shortness)[:MOST_ROWS]
        shown.sort(key=lambda one: one.submission.number)
        rows = []
        for record in shown:
            job = record.submission
            rows.append(
                [
                    job.name,
                    job.kind or "(duration)",
                    show_long(job.arrival),
                    "still waits" if record.waiting is None else show_long(record.waiting),
                    "" if record.run_time is None else show_long(record.run_time),
                    ranges(tuple(map(str, record.nodes))) or f"({job.nodes})",
                ]
            )
        which = "jobs" if len(shown) == len(self.records) else f"the {len(shown)} jobs that waited longest"
        return f"{which}\n{indented(table(rows, ['', 'kind', 'arrival', 'waiting', 'run time', 'nodes'], 'llrrrl'))}"

    def _effort(self) -> str:
        if not self.effort.simulations:
            return ""
        return (
            f"{self.effort.simulations:,} simulations of steps; {self.effort.situations:,} situations of jobs beside "
            "others; equal ones are simulated once"
        )

    def jobs_table(self) -> str:
        """Return the table of all jobs as CSV: times in s, the numbers of nodes separated by spaces."""
        text = StringIO(newline="")
        rows = [self.row(record) for record in self.records]
        writer = csv.DictWriter(text, rows[0] if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "node_numbers": " ".join(map(str, row["node_numbers"]))} for row in rows)
        return text.getvalue()


def _shortness(record: JobRecord) -> float:
    """The waiting time of a job with the sign changed; those that still wait have waited longest."""
    return -inf if record.waiting is None else -record.waiting


def _ended(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["run_time_s"] is not None]
