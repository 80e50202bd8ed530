"""The files of a plan: the best scenarios, the answer, its picture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scenarios.files.writing import anywhere
from scenarios.plan.answer import Answer
from simulator.document.yaml_text import yaml_text
from simulator.files import write_text

ANSWER, REPORT, PICTURE = "plan.json", "plan.txt", "plan.png"


def write(answer: Answer, folder: Path) -> Iterator[Path]:
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


def picture(answer: Answer, path: Path) -> None:
    """Draw memory against time of the candidates of *answer* to *path*."""
    from simulator.analysis.plot import draw_pareto
    from simulator.analysis.plot.pareto import Point

    draw_pareto([Point(*one) for one in answer.points()], answer.planner.within, path, title=answer.title)
