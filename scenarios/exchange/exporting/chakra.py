"""The simulated step as Chakra execution traces, one file a rank, which ASTRA-sim reads."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from clustersim.scenarios.exchange.export import Content, Export
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.traces.chakra import Traces

REPLAYED = ("reduce", "gather", "scatter")
"""Kinds that ASTRA-sim has no algorithm for."""


def chakra(scenario: Scenario) -> Export:
    """Return a trace ``NAME.RANK.et`` for each rank of the simulated *scenario*, and the groups of its collectives."""
    timeline = scenario.run().timeline
    traces = Traces(timeline)
    files: dict[str, Content] = {
        f"{scenario.name}.{rank}.et": partial(_write, traces, rank) for rank in range(timeline.world_size)
    }
    files["comm_group.json"] = traces.groups_file()
    notes = [f"ASTRA-sim: --workload-configuration=DIR/{scenario.name} --comm-group-configuration=DIR/comm_group.json"]
    kinds = {op.kind for _, op in timeline.schedule.ops() if hasattr(op, "kind")}
    if missing := sorted(kinds.intersection(REPLAYED)):
        notes.append(f"ASTRA-sim has no algorithm for {', '.join(missing)}")
    return Export(files, tuple(notes), folder=True)


def _write(traces: Traces, rank: int, path: Path) -> None:
    path.write_bytes(traces.trace(rank))
