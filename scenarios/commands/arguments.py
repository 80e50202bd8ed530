"""Arguments that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

Scenarios = Annotated[
    list[str], typer.Argument(metavar="SCENARIO", help="Paths of scenario files, or names of shipped ones.")
]
OneScenario = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="Path of a scenario file, or the name of a shipped one.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Set a value of the scenario; may be given several times."),
]
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=1, help="Processes that share the runs of a check.")]


def numbers(text: str) -> list[int]:
    """Return the ranks of a text such as ``0,8:16``: single ranks, and ranges without their end."""
    from simulator.errors import ScenarioError

    chosen: list[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        if not first.strip().isdigit() or (colon and not last.strip().isdigit()):
            raise ScenarioError(f'--ranks {text}: "{part}" is not a rank or a range; write e.g. 0,8:16')
        chosen += range(int(first), int(last)) if colon else [int(first)]
    if not chosen:
        raise ScenarioError(f"--ranks {text}: names no rank; write e.g. 0,8:16")
    return chosen
