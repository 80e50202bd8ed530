"""`clustersim check` validates scenarios and bounds their memory, without simulation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from clustersim.scenarios.commands.application import BAD_INPUT, Scenarios, Settings, command, load
from clustersim.scenarios.commands.terminal import say
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.plain_text import printable
from clustersim.simulator.reading.units import show_long

if TYPE_CHECKING:
    from clustersim.scenarios.scenario import Scenario


@command()
def check(scenarios: Scenarios, settings: Settings = None) -> int:
    """Check scenarios and bound their memory; nothing is simulated."""

    status = 0
    for name in scenarios:
        try:
            scenario = load(name, settings)
            for run in scenario.runs:
                if run.specification.queue is not None:
                    say(_queue_line(run, name if run is scenario else f"{name} ({run.name})"))
            each = (run for run in scenario.runs if run.jobs or run.specification.queue is None)
            for one in (job for run in each for job in run.jobs.values() or [run]):
                say(_line(one, name if one is scenario else f"{name} ({one.name})"))
        except SimulatorError as error:
            say(printable(str(error)), sys.stderr)
            status = BAD_INPUT
    return status


def _queue_line(scenario: Scenario, name: str) -> str:
    arrived = scenario.submissions[0]
    return f"{name}: ok, {len(arrived):,} jobs arrive, the last after {show_long(arrived[-1].arrival)}"


def _line(scenario: Scenario, name: str) -> str:
    from clustersim.scenarios.build.memory_need import memory_need
    from clustersim.scenarios.build.network import check_algorithms
    from clustersim.scenarios.run.running import communicator
    from clustersim.simulator.schedule.check import check as check_schedule

    schedule, derived = scenario.checked_schedule(), scenario.derived
    check_schedule(schedule)
    if scenario.specification.campaign is not None:
        from clustersim.scenarios.campaign.build import check as check_campaign

        check_campaign(scenario)
    check_algorithms(schedule, communicator(scenario), scenario.document)
    idle = f", {len(derived.idle)} idle" if derived.idle else ""
    line = f"{name}: ok, {derived.gpus} GPUs{idle}"
    if scenario.model is None:
        return line
    need = memory_need(scenario, schedule)
    training = scenario.specification.training
    if training is not None and training.plans_activations:
        return f"{line}, {need} with the fewest activations; a run plans them"
    return f"{line}, {need}" + ("" if need.fits else " (by an upper bound)")
