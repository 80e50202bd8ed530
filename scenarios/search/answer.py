"""The answer of a plan: the best candidates, why the first is best, what was rejected; and its files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from clustersim.scenarios.build.memory_need import of_capacity
from clustersim.scenarios.results.result_files import anywhere
from clustersim.scenarios.search.planner import Judged, Planner
from clustersim.scenarios.search.reasons import Miss, Neighbour, Reasons, miss_line, sentence
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import write_text
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.yaml_and_json import yaml_text


@dataclass(frozen=True)
class PlanAnswer:
    """The *best* candidates of *planner*, simulated, with the reasons for the first: *neighbours*, *binding*, *misses*.

    *rejected*: how many by kind.
    """

    planner: Planner
    best: Sequence[Judged]
    rejected: Mapping[str, int]
    neighbours: Sequence[Neighbour]
    binding: Neighbour | None
    misses: Sequence[Miss]

    @cached_property
    def why(self) -> str:
        """Why the first is best."""
        return sentence(self.best[0], self.neighbours, self.binding, self.planner.within)

    def tied(self, one: Judged) -> bool:
        """Return whether *one* is closer to the first than the interval of the calibration; False if there is none."""
        interval = self.best[0].result.get("step_time_interval_s")
        return interval is not None and one is not self.best[0] and one.seconds <= interval[1]

    @property
    def counts(self) -> dict[str, int]:
        """How many candidates there were, were priced by a bound or an estimate, were estimated and simulated."""
        planner = self.planner
        own = {one.key for one in planner.candidates}
        return {
            "candidates": len(planner.candidates),
            "priced": sum(not planner.bounds[key].kind for key in own),
            "estimated": sum(key in own for key in planner.journal.estimated),
            "simulated": sum(key in own for key in planner.journal.simulated),
        }

    def summary(self) -> dict[str, Any]:
        """Return the answer as `plan --json` prints it."""
        listed = self.best if self.planner.plan.simulate == "all" else self.best[: self.planner.plan.top]
        return {
            "name": self.planner.scenario.name,
            **self.counts,
            "method": self.planner.plan.method,
            "objective": self.planner.plan.objective,
            "best": [self._row(one) for one in listed],
            "rejected": dict(self.rejected),
            "misses": [_miss_numbers(miss) for miss in self.misses],
        }

    def _row(self, one: Judged) -> dict[str, Any]:
        result = one.result
        return {
            "set": one.candidate.settings,
            "software": result["software"],
            "estimate_s": one.estimate,
            "step_time_s": one.seconds,
            "step_time_interval_s": result.get("step_time_interval_s"),
            "tied": self.tied(one),
            "mfu": result["mfu"],
            "memory": {**result["memory"], "need_bytes": result["need_bytes"]},
            "bubble_fraction": result["bubble_fraction"],
            "exposed_s": result["exposed_s"],
            **({"training": result["training"]} if "training" in result else {}),
            "why": self.why if one is self.best[0] else None,
            "compared": [_numbers(n) for n in self._quoted] if one is self.best[0] else [],
        }

    @property
    def _quoted(self) -> list[Neighbour]:
        return [*self.neighbours, *([self.binding] if self.binding else [])]

    @property
    def title(self) -> str:
        """What was planned and how many candidates were looked at how."""
        counts, rejected = self.counts, sum(self.rejected.values())
        return (
            f"{self.planner.scenario.name}: {counts['candidates']:,} candidates, {rejected:,} rejected, "
            f"{counts['estimated']:,} estimated, {counts['simulated']:,} simulated"
        )

    def report(self) -> str:
        """Return the answer as text."""
        told = [f"{self.title}; best by {self.planner.plan.objective}", self._table(), f"Why: {self.why}"]
        if any(self.tied(one) for one in self.best):
            told.append("~ closer to the first than the interval of the calibration: tied")
        if self.misses:
            lines = [miss_line(miss, self.rejected[miss.kind]) for miss in self.misses]
            told.append("\n".join(["Rejected, with the nearest of each kind", *(f"  {line}" for line in lines)]))
        return "\n\n".join(told)

    def _table(self) -> str:
        shown = self.best[: self.planner.plan.top]
        cost = any((one.result.get("training") or {}).get("cost") is not None for one in shown)
        days = any("training" in one.result for one in shown)
        columns = ["", "plan", "software", "step time", "estimate", "MFU", "memory", "bubble", "exposed"]
        columns += ["days"] * days + ["cost"] * cost
        rows = []
        for place, one in enumerate(shown, 1):
            result = one.result
            row = [
                f"{place}{'~' if self.tied(one) else ''}",
                one.candidate.name,
                result["software"],
                show(one.seconds, "time"),
                f"{100 * (one.estimate / one.seconds - 1):+.1f} %",
                f"{result['mfu']:.1%}",
                of_capacity(result["need_bytes"], self.planner.within),
                f"{result['bubble_fraction']:.1%}",
                show(result["exposed_s"], "time"),
            ]
            whole = result.get("training") or {}
            row += [f"{whole['days']:.3g}"] if days else []
            row += [f"{whole['cost']:,.0f}"] if cost else []
            rows.append(row)
        return plain_text.table(rows, columns, "lll" + "r" * (len(columns) - 3))

    def points(self) -> list[tuple[str, float, float, bool]]:
        """Return (name, seconds, bytes, simulated) of all candidates that have an estimate, or a simulation."""
        journal, found = self.planner.journal, list[tuple[str, float, float, bool]]()
        for one in self.planner.candidates:
            priced, result = journal.estimated.get(one.key), journal.simulated.get(one.key)
            if result is not None:
                found.append((one.name, result["step_time_s"], result["need_bytes"], True))
            elif priced is not None and priced.seconds is not None:
                found.append((one.name, priced.seconds, priced.nbytes, False))
        return found


def _numbers(one: Neighbour) -> dict[str, Any]:
    judged = one.judged
    return {
        "change": one.change,
        "set": one.candidate.settings,
        "step_time_s": judged.seconds if judged else None,
        "need_bytes": judged.result["need_bytes"] if judged else None,
        "rejected": one.rejected or None,
        "at_most": one.at_most,
    }


def _miss_numbers(miss: Miss) -> dict[str, Any]:
    judged = miss.judged
    return {
        "kind": miss.kind,
        "set": miss.candidate.settings,
        "why": miss.why,
        "step_time_s": judged.seconds if judged else None,
        "need_bytes": judged.result["need_bytes"] if judged else None,
        "fix": _numbers(miss.fix) if miss.fix else None,
    }


def answer(planner: Planner) -> PlanAnswer:
    """Return the answer of *planner*. Raises `ScenarioError` if no candidate fits."""
    best = planner.best()
    rejected = {kind: len(several) for kind, several in planner.rejected().items()}
    if not best:
        raise ScenarioError(_nothing(planner, rejected))
    planner.watch.begin("simulating neighbours of the best")
    reasons = Reasons(planner, best[0])
    neighbours = reasons.neighbours()
    binding = reasons.binding(neighbours)
    return PlanAnswer(planner, best, rejected, neighbours, binding, reasons.misses(binding))


def _nothing(planner: Planner, rejected: Mapping[str, int]) -> str:
    counted = ", ".join(f"{kind} {count:,}" for kind, count in rejected.items())
    estimated = planner.journal.estimated
    possible = {key: one.nbytes for key, one in planner.bounds.items() if not one.kind}
    needs = (estimated[key].nbytes if key in estimated else least for key, least in possible.items())
    least = min(filter(None, needs), default=0.0)
    told = f"no candidate of {len(planner.candidates):,} can run ({counted})"
    if not least:
        return told
    return f"{told}; the least memory that one needs is over {of_capacity(least, planner.within)}: more GPUs are needed"


ANSWER, REPORT, PICTURE = "plan.json", "plan.txt", "plan.png"


def write(answer: PlanAnswer, folder: Path) -> Iterator[Path]:
    """Write the answer, and the scenario of each candidate that it lists, into *folder*; yield the paths."""
    summary = answer.summary()
    for place, row in enumerate(answer.best[: len(summary["best"])], 1):
        path = folder / f"{place:02}.yaml"
        scenario = answer.planner.space.scenario_of(row.candidate)
        name = f"{answer.planner.scenario.name}-{place:02}"
        data: dict[str, Any] = {**anywhere(scenario.source.data), "name": name, "description": row.candidate.name}
        write_text(path, yaml_text({key: value for key, value in data.items() if key != "expect"}))
        yield path
    write_text(folder / ANSWER, json.dumps(summary, indent=2) + "\n")
    yield folder / ANSWER
    write_text(folder / REPORT, answer.report() + "\n")
    yield folder / REPORT
    picture(answer, folder / PICTURE)
    yield folder / PICTURE


def picture(answer: PlanAnswer, path: Path) -> None:
    """Draw memory against time of the candidates of *answer* to *path*."""
    from clustersim.simulator.charts.figures import draw_pareto
    from clustersim.simulator.charts.scatter import ParetoPoint

    draw_pareto([ParetoPoint(*one) for one in answer.points()], answer.planner.within, path, title=answer.title)
