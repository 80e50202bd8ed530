"""What would let a smaller cluster meet a target: another GPU, batch or number format, each planned and simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.planned_sizes import Clusters, Reached
from clustersim.scenarios.search.target import Target
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.lookup import names
from clustersim.topologies.catalogue import GPUS, device, link


@dataclass(frozen=True)
class Relaxation:
    """A change that may let a smaller cluster do: its *words*, what it *sets*, and what is *reached* with it.

    *reached*: None if nothing fits. *met*: whether that meets the target.
    """

    words: str
    sets: Mapping[str, Any]
    reached: Reached | None
    met: bool

    def line(self, target: Target) -> str:
        """Return the change and what it does, as a line."""
        if self.reached is None:
            return f"{self.words}: nothing fits"
        outcome = "meets the target" if self.met else "misses it"
        return f"{self.words}: {target.show(self.reached.value)}, {outcome}"


def relaxations(clusters: Clusters, nodes: int) -> Iterator[Relaxation]:
    """Yield changes of one thing each, with what the best plan on *nodes* reaches then."""
    for words, sets in changes(clusters.scenario):
        try:
            changed = clusters.scenario.changed({**sets, **_ONE_REPLICA}, "--target")
            reached = Clusters(changed, clusters.target, clusters.processes, clusters.watch).reached(nodes)
        except SimulatorError:
            # the change does not go with the rest of the scenario
            continue
        yield Relaxation(words, sets, reached, reached is not None and clusters.target.is_met(reached.value))


_ONE_REPLICA = {"parallelism.dp": 1}
"""The scenario's own number of replicas need not divide a changed batch; plans have their own."""


def changes(scenario: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the words and the settings of each change that is tried; what the plan varies itself is none."""
    training = scenario.specification.training
    assert training is not None
    space = Space(scenario)
    low = [one for one in space.job.precisions if not isinstance(one, str)]
    if low and isinstance(training.precision, str) and "precision" not in space.search:
        yield "products in fp8", {"training.precision": low[0]}
    batch = 2 * training.global_batch_size
    yield f"a batch of {batch:,}, which may need more tokens", {"training.global_batch_size": batch}
    if faster := _faster_gpu(scenario):
        yield f"GPU {faster} with its links in such nodes, at the same price", _with_gpu(scenario, faster)


def _with_gpu(scenario: Scenario, name: str) -> dict[str, Any]:
    """Return the settings of nodes with the GPU *name*; links of the GPUs' own kind become those of its kind."""
    own, present = device(GPUS, name).links, scenario.document.get(_JOINED)
    joined = (
        {".".join(_JOINED): own.kind} if own and present is not None and _family(present) == _family(own.kind) else {}
    )
    return {"cluster.node.accelerator": name, **joined}


_JOINED = ("cluster", "node", "intra", "kind")


def _faster_gpu(scenario: Scenario) -> str | None:
    """Return the GPU of the catalogue with the least higher peak, as much memory and no slower links, or None."""
    used = {gpu.name for gpu in scenario.cluster().count(scenario.cluster().gpus)}
    if len(used) != 1 or (name := used.pop()) not in names(GPUS):
        return None
    kind, bandwidth = _links(name)
    alike = [one for one in names(GPUS) if _links(one)[0] == kind and _links(one)[1] >= bandwidth]
    roomy = [one for one in alike if _memory(one) >= _memory(name)]
    faster = [(_rate(one), _memory(one), one) for one in roomy if _rate(one) > _rate(name)]
    return min(faster)[2] if faster else None


def _memory(name: str) -> float:
    return device(GPUS, name).accelerator().memory_bytes


def _rate(name: str) -> float:
    """Return the peak of a GPU of the catalogue in 16 bits, FLOP/s; 0 if it states none."""
    peaks = device(GPUS, name).peak_flops
    return float(peaks.get("bf16", peaks.get("fp16", 0.0)) if isinstance(peaks, Mapping) else peaks)


def _links(name: str) -> tuple[str, float]:
    """Return the family of a GPU's links, e.g. nvlink, and the bandwidth of all, bytes/s; empty and 0 without links."""
    links = device(GPUS, name).links
    return (_family(links.kind), link(links.kind, count=links.count).bandwidth) if links else ("", 0.0)


def _family(kind: str) -> str:
    return kind.rstrip("0123456789")
