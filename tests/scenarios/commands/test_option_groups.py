"""A dataclass in the signature of a command stands for the options that its fields are."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from clustersim.scenarios.commands import application
from clustersim.simulator.reading.errors import ScenarioError


@dataclass(frozen=True)
class Place:
    """Where something is."""

    row: Annotated[int, typer.Option(min=1, help="The row.")]
    shelf: Annotated[str | None, typer.Option("--on", help="The shelf.")] = None


@pytest.fixture
def app(monkeypatch):
    made = typer.Typer()
    monkeypatch.setattr(application, "app", made)

    @application.command()
    def store(what: str, *, quickly: bool = False, place: Place, times: int = 1) -> int:
        print(what, quickly, place, times)
        return 0

    return made


def test_fields_stand_in_place_of_the_group(app):
    (command,) = app.registered_commands
    assert list(signature(command.callback).parameters) == ["what", "quickly", "row", "shelf", "times"]
    shown = CliRunner().invoke(app, ["--help"]).output
    assert shown.index("--quickly") < shown.index("--row") < shown.index("--on") < shown.index("--times")


def test_the_function_gets_the_group(app):
    shown = CliRunner().invoke(app, ["box", "--row", "3", "--on", "top"]).output
    assert shown == "box False Place(row=3, shelf='top') 1\n"


def test_options_of_a_group_are_checked_as_others(app):
    assert CliRunner().invoke(app, ["box"]).exit_code == 2
    assert CliRunner().invoke(app, ["box", "--row", "0"]).exit_code == 2


def test_the_machine_of_a_model_without_a_scenario():
    assert application.OnMachine(gpus=16).machine().nodes == 2
    with pytest.raises(ScenarioError, match="--gpus 12: does not fill nodes of 8 GPUs"):
        application.OnMachine(gpus=12).machine()
