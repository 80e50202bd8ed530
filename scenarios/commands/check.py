"""`clustersim check` validates scenarios and bounds their memory, without simulation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from scenarios.application import BAD_INPUT, app
from scenarios.commands.arguments import Scenarios, Settings
from simulator.errors import SimulatorError
from simulator.plain_text import printable

if TYPE_CHECKING:
    from scenarios.scenario import Scenario


@app.command()
def check(scenarios: Scenarios, settings: Settings = None) -> int:
    """Check scenarios and bound their memory; nothing is simulated."""
    from scenarios.scenario import Scenario

    status = 0
    for name in scenarios:
        try:
            scenario = Scenario.load(name, options=settings)
            for one in scenario.variants.values() or [scenario]:
                print(_line(one, name if one is scenario else f"{name} ({one.name})"))
        except SimulatorError as error:
            print(printable(str(error)), file=sys.stderr)
            status = BAD_INPUT
    return status


def _line(scenario: Scenario, name: str) -> str:
    from scenarios.results.text import memory_line
    from simulator.analysis.memory import bound
    from simulator.schedule.check import check as check_schedule

    schedule, derived = scenario.schedule(), scenario.derived
    check_schedule(schedule)
    idle = f", {len(derived.idle)} idle" if derived.idle else ""
    line = f"{name}: ok, {derived.gpus} GPUs{idle}"
    if scenario.model is None:
        return line
    held = bound(schedule).peak
    capacity = scenario.cluster().accelerator(derived.devices[held.rank]).memory_bytes
    return f"{line}, {memory_line(held, capacity)}"
