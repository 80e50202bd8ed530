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
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=1, help="Processes of this machine that share the runs.")]
On = Annotated[
    str, typer.Option("--on", metavar="ADDRESS", help="Dask cluster that executes the runs, e.g. tcp://host:8786.")
]

MOST_RANKS = 1_000_000
"""Ranks of a simulation at most: the GPUs that a cluster may have."""


def numbers(text: str) -> list[int]:
    """Return the ranks of a text such as ``0,8:16``: single ranks, and ranges without their end, each rank once."""
    from simulator.errors import ScenarioError

    chosen: dict[int, None] = {}
    for part in text.split(","):
        first, colon, last = part.partition(":")
        if not _is_number(first) or (colon and not _is_number(last)):
            raise ScenarioError(f'--ranks {text[:60]}: "{part[:40]}" is not a rank or a range; write e.g. 0,8:16')
        end = _number(last) if colon else _number(first) + 1
        if end > MOST_RANKS:
            raise ScenarioError(f"--ranks {text[:60]}: a cluster has at most {MOST_RANKS:,} ranks; write e.g. 0,8:16")
        chosen |= dict.fromkeys(range(_number(first), end))
    if not chosen:
        raise ScenarioError(f"--ranks {text}: names no rank; write e.g. 0,8:16")
    return list(chosen)


def _is_number(text: str) -> bool:
    return text.strip().isascii() and text.strip().isdigit()


def _number(text: str) -> int:
    digits = text.strip().lstrip("0")
    # Python reads a number of thousands of digits only on request
    return int(digits or "0") if len(digits) < 20 else 10**20
