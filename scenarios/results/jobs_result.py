"""The result of several jobs on one cluster, with its report and its charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clustersim.scenarios.build.description import cluster_title
from clustersim.scenarios.results.jobs_numbers import JobsNumbers
from clustersim.scenarios.results.result_kinds import PlottedResult
from clustersim.scenarios.results.titles import engine_line, title
from clustersim.simulator.reading.plain_text import indented, table
from clustersim.simulator.reading.units import show


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
