"""What the best plans reach on clusters of several sizes, by what a target counts; each size is planned once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.lower_bounds import ALMOST
from clustersim.scenarios.search.planner import Judged, Planner, Unwatched, Watch
from clustersim.scenarios.search.target import Target

MOST_NODES = 4096
"""Nodes of the largest cluster that is tried."""

PARTS = 16
"""Numbers of nodes between two powers of two that are tried, in parts of the larger one."""


def sizes(begin: int, end: int) -> list[int]:
    """Return the numbers of nodes from *begin*, below *end*, that are tried.

    >>> sizes(1, 24), sizes(64, 100)
    ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22], [64, 72, 80, 88, 96])
    """
    found, size = [], 1
    while size < end:
        found.append(size)
        size += max(1, 2 ** size.bit_length() // PARTS)
    return [one for one in found if one >= begin]


@dataclass(frozen=True)
class Reached:
    """What the best plan on *nodes* (*gpus*) reaches, by the simulation *judged*: the *value* that a target counts."""

    nodes: int
    gpus: int
    judged: Judged
    value: float

    @property
    def where(self) -> str:
        """The size of the cluster in words."""
        return f"{self.gpus:,} GPUs ({self.nodes:,} node{'s' if self.nodes > 1 else ''})"

    def summary(self) -> dict[str, Any]:
        """Return the numbers for `--json`."""
        result = self.judged.result
        return {
            "nodes": self.nodes,
            "gpus": self.gpus,
            "set": {"cluster.nodes": self.nodes, **self.judged.candidate.settings},
            "step_time_s": self.judged.seconds,
            "tokens_per_s_per_gpu": result["tokens_per_s"] / self.gpus if result.get("tokens_per_s") else None,
            **({"training": result["training"]} if "training" in result else {}),
        }


@dataclass
class Clusters:
    """What plans of *scenario* reach on clusters of several sizes, each planned once."""

    scenario: Scenario
    target: Target
    processes: int = 1
    watch: Watch = field(default_factory=Unwatched)

    def __post_init__(self) -> None:
        self._reached: dict[int, Reached | None] = {}
        self._bounds: dict[int, float] = {}
        self._planner: tuple[int, Planner] | None = None

    def meets(self, nodes: int) -> bool:
        """Return whether the best plan on *nodes* meets the target; it is simulated only if its bound does."""
        bound = self.bound(nodes)
        if bound == inf or self.target.loss(bound) > self.target.loss(self.target.amount):
            return False
        reached = self.reached(nodes)
        return reached is not None and self.target.is_met(reached.value)

    def bound(self, nodes: int) -> float:
        """Return a value that no plan on *nodes* betters; infinite if none can run."""
        if nodes not in self._bounds:
            self._bounds[nodes] = self._bound(self._planned(nodes))
        return self._bounds[nodes]

    def _bound(self, planner: Planner) -> float:
        planner.bound(planner.candidates)
        seconds = min((planner.bounds[one.key].seconds for one in planner.open), default=inf)
        if seconds == inf:
            return inf
        if not seconds:
            # an order without a bound may take no time: nothing is excluded
            return self.target.amount
        return self.target.of_step(seconds * ALMOST, len(planner.scenario.cluster().gpus), planner.scenario)

    def reached(self, nodes: int) -> Reached | None:
        """Return what the best plan on *nodes* reaches; None if none fits."""
        if nodes not in self._reached:
            self._reached[nodes] = self._best(nodes, self._planned(nodes)) if self.bound(nodes) != inf else None
        return self._reached[nodes]

    def _best(self, nodes: int, planner: Planner) -> Reached | None:
        best = planner.best()
        if not best:
            return None
        gpus = len(planner.scenario.cluster().gpus)
        return Reached(nodes, gpus, best[0], self.target.of(best[0].result, gpus))

    def _planned(self, nodes: int) -> Planner:
        """Return the planner for *nodes*; only the last one is kept."""
        if self._planner is None or self._planner[0] != nodes:
            self.watch.begin(f"trying {nodes:,} nodes")
            made = Planner(on_nodes(self.scenario, nodes), self.processes, watch=self.watch)
            self._planner = nodes, made
        return self._planner[1]

    def best_of(self, several: Sequence[int]) -> Reached | None:
        """Return the best that is reached on any of *several* sizes; None if nothing fits on any."""
        best: Reached | None = None
        possible = [nodes for nodes in several if self.bound(nodes) != inf]
        for nodes in sorted(possible, key=lambda one: self.target.loss(self.bound(one))):
            if best is not None and self.target.loss(self.bound(nodes)) >= self.target.loss(best.value):
                break
            reached = self.reached(nodes)
            if reached and (best is None or self.target.loss(reached.value) < self.target.loss(best.value)):
                best = reached
        return best

    @property
    def missed(self) -> dict[int, float]:
        """The values of the best plans that miss the target, by nodes, of the sizes that were simulated."""
        found = {nodes: one.value for nodes, one in self._reached.items() if one}
        return {nodes: value for nodes, value in sorted(found.items()) if not self.target.is_met(value)}


def on_nodes(scenario: Scenario, nodes: int) -> Scenario:
    """Return *scenario* on *nodes* for a plan with the same search; its own degrees need not fit there."""
    return elsewhere(scenario, {"cluster.nodes": nodes}, "--target")


def elsewhere(scenario: Scenario, cluster: Mapping[str, Any], shown: str) -> Scenario:
    """Return *scenario* with the settings *cluster*, by key, for a plan with the same search; messages name *shown*.

    Its own degrees need not fit there.
    """
    space = Space(scenario)
    search = dict(space.search)
    for key in space.varying | {"pp"}:
        search.setdefault(key, [space.given.get(key, 1)] if key == "pp" or key in space.given else None)
    kept = {key: value for key, value in space.given.items() if key not in search}
    changes = {
        **cluster,
        "parallelism": {**kept, "dp": 1},
        "plan.search": {key: values for key, values in search.items() if values is not None},
        "plan.objective": "step_time",
        "plan.simulate": 1,
    }
    return scenario.changed(changes, shown)
