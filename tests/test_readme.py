"""The README is short, its commands exist, and its figures are those that commands print and ACCURACY.md has."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TEXT = README.read_text()
RESULTS = (ROOT / "docs" / "zhores.md").read_text()
FIGURES = re.findall(r"^clustersim run (.+?) {4}# (step time|exposed dp|busbw) ([\d.]+) (ms|GB/s)$", RESULTS, re.M)
LONGEST = 9000
"""Bytes of the README."""


def printed(summary: dict[str, Any], what: str) -> float:
    """The figure *what* in the README's unit."""
    if what == "busbw":
        return float(summary["collective"][0]["busbw"]) / 1e9
    return 1e3 * float(summary["step_time_s"] if what == "step time" else summary["breakdown_s"]["exposed_dp"])


def test_every_command_of_the_results_has_its_figure() -> None:
    assert len(FIGURES) == len(re.findall(r"^clustersim ", RESULTS, re.M)) == 13


@pytest.mark.parametrize(("arguments", "what", "figure", "unit"), FIGURES)
def test_figures_are_those_that_the_commands_print(arguments: str, what: str, figure: str, unit: str) -> None:
    scenario, *rest = shlex.split(arguments)
    settings = [word for word in rest if word != "--set"]
    summary = Scenario.load(scenario, options=settings).run().summary()
    # half of the last digit, and 0.5 %, which a change of prices may shift before the table is renewed
    assert printed(summary, what) == pytest.approx(float(figure), rel=5e-3), "measure anew, and tell the table too"
    table = [line for line in RESULTS.splitlines() if re.match(r"\| [1-4]\. ", line)]
    assert any(f"{figure} {unit}" in line for line in table)


@pytest.mark.parametrize("command", sorted(set(re.findall(r"\bclustersim ([a-z]+)", TEXT)) - {"predicts"}))
def test_commands_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"clustersim {command}" in capsys.readouterr().out


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)]+)\)", TEXT))))
def test_links_have_a_target(target: str) -> None:
    assert (README.parent / target).is_file()


def test_the_scenario_is_valid() -> None:
    from clustersim.simulator.reading.yaml_and_json import read_value

    (text,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.S)
    assert Scenario.model_validate(read_value(text)).derived.replicas == 40


def test_the_readme_is_short_and_its_table_is_of_the_accuracy_page(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(TEXT.encode()) <= LONGEST
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    readme = import_module("readme")
    accuracy = (ROOT / "ACCURACY.md").read_text()
    assert readme.with_table(TEXT, accuracy) == TEXT, "copy the rows anew: python docs/readme.py"
    assert len(readme.table(accuracy)) == 2 + 5


def test_nothing_that_is_simulated_is_said_not_to_be() -> None:
    page = import_module("clustersim.scenarios.accuracy.accuracy")
    denied = (ROOT / "ACCURACY.md").read_text().partition("## What is not modelled")[2].partition("\n## ")[0]
    simulated = (ROOT / "docs" / "what_is_simulated.md").read_text()
    denied += simulated.partition("Not simulated:")[2] + " ".join(page.NOT_MODELLED)
    assert "Congestion control" in denied
    for what in (
        "adaptive routing",
        "other jobs on the same network",
        "Reading of data, checkpoints",
        "offload",
        "expert",
    ):
        assert what not in denied, what
    assert "Not: " not in TEXT
