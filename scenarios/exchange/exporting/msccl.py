"""The algorithm of a collective as an XML file of MSCCL, which `network.algorithms` and MSCCL's runtime take."""

from __future__ import annotations

from clustersim.scenarios.exchange.export import Export
from clustersim.scenarios.run.running import communicator
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.network.algorithm_files.algorithm_file import is_file
from clustersim.simulator.network.algorithm_files.msccl_writer import msccl_xml
from clustersim.simulator.network.library import tuner
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.units import show


def msccl(scenario: Scenario) -> Export:
    """Return the algorithm that the library takes for the first size of the collective of *scenario*.

    Raises `ScenarioError` for a scenario of a training step, and for what MSCCL cannot say.
    """
    benchmark = scenario.specification.collective
    if benchmark is None:
        raise scenario.document.error((), "msccl writes the algorithm of one collective; give collective: {kind, size}")
    network, ranks = communicator(scenario), tuple(range(scenario.derived.ranks))
    kind, first = benchmark.kind, benchmark.size[0]
    taken = {size: network.collective(kind, "all", ranks, size, benchmark.root).algorithm for size in benchmark.size}
    name = taken[first]
    if is_file(name):
        raise scenario.document.error(("network", "algorithms"), f"{name} is an algorithm file already")
    topology = network.topology(ranks)
    steps = tuner.steps(name, kind, topology.group, first, benchmark.root)
    try:
        text = msccl_xml(name, kind, len(ranks), steps)
    except SimulatorError as error:
        raise scenario.document.error(("collective", "kind"), f"cannot be written for MSCCL: {error}") from None
    notes = [f"{size_of} takes {other}, which is not in the file" for size_of, other in _others(taken, name)]
    if any(step.pipelined for step in steps):
        notes.append(f"{name} passes chunks on; read again, it pays a latency for each of them")
    return Export({f"{scenario.name}_{name}.xml": text}, tuple(notes))


def _others(taken: dict[float, str], name: str) -> list[tuple[str, str]]:
    """The sizes that take another algorithm than *name*."""
    return [(show(size, "size"), other) for size, other in taken.items() if other != name]
