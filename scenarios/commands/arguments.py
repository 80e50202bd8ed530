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
