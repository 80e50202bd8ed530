"""A launch script for Megatron-LM: torchrun, ``pretrain_gpt.py`` and its arguments."""

from __future__ import annotations

from scenarios.exporting import Export
from scenarios.exporting._launch import command, launch, script, torchrun
from scenarios.exporting._megatron import AXES, PROGRAM, arguments, environment, notes
from scenarios.scenario import Scenario


def megatron(scenario: Scenario) -> Export:
    """Return the script. Raises `ScenarioError` for what Megatron-LM does not have, with its rule."""
    run = launch(scenario, PROGRAM, AXES)
    started = command(f"{torchrun(run)} pretrain_gpt.py", arguments(run))
    text = script(scenario.name, "Megatron-LM core_v0.15.3", [*environment(run), "", started])
    return Export({f"{scenario.name}.sh": text}, notes(run))
