"""Which other cluster meets a target: the least of each of several of the catalogue, at a price of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.planned_sizes import Clusters, Reached, elsewhere
from clustersim.scenarios.search.target import Target
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
from clustersim.simulator.reading.lookup import names
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.validation import near

CATALOGUE = "clustersim.topologies.clusters"


@dataclass(frozen=True)
class OtherCluster:
    """A cluster *name* of the catalogue, at *price* of a GPU-hour; None: the scenario's."""

    name: str
    price: float | None = None

    def of(self, scenario: Scenario) -> Scenario:
        """Return *scenario* on one node of this cluster. Raises `SimulatorError` if it cannot be there."""
        cost = {} if self.price is None else {"cost.gpu_hour": self.price}
        return elsewhere(scenario, {"cluster": {"preset": self.name, "nodes": 1}, **cost}, f"--clusters {self.name}")


@dataclass(frozen=True)
class OtherLeast:
    """The least size of the cluster *given* that meets a target, which reaches *reached*; None: none, and *why*."""

    given: OtherCluster
    reached: Reached | None
    why: str = ""

    def summary(self) -> dict[str, Any]:
        """Return the numbers for `--json`."""
        numbers: Mapping[str, Any] = {**self.reached.summary(), "value": self.reached.value} if self.reached else {}
        return {"cluster": self.given.name, "gpu_hour": self.given.price, **numbers, "why": self.why}


def other_clusters(text: str) -> list[OtherCluster]:
    """Return the clusters that *text* names, as ``NAME`` or ``NAME=PRICE``, with commas. Raises `ScenarioError`.

    >>> other_clusters("dgx_h200,dgx_b200=4.5")
    [OtherCluster(name='dgx_h200', price=None), OtherCluster(name='dgx_b200', price=4.5)]
    """
    found = []
    for one in text.split(","):
        name, equals, price = (part.strip() for part in one.partition("="))
        if name not in names(CATALOGUE):
            hint = near(name, names(CATALOGUE))
            raise ScenarioError(
                f'--clusters: "{name[:40]}" is no cluster of the catalogue; clustersim list clusters has all'
                + (f"\n     help: {hint}" if hint else "")
            )
        try:
            found.append(OtherCluster(name, _price(price) if equals else None))
        except ValueError:
            raise ScenarioError(
                f"--clusters {name}={price[:40]}: must be a price of a GPU-hour above 0, e.g. {name}=2.5"
            ) from None
    return found


def _price(text: str) -> float:
    found = float(text)
    if not 0 < found < inf:
        raise ValueError(text)
    return found


def leasts(
    clusters: Clusters, others: Sequence[OtherCluster], least_size: Callable[[Clusters], int]
) -> list[OtherLeast]:
    """Return the least size of each of *others* that meets the target of *clusters*, found by *least_size*."""
    found = []
    for one in others:
        clusters.watch.begin(f"trying {one.name}")
        try:
            there = Clusters(one.of(clusters.scenario), clusters.target, clusters.processes, clusters.watch)
            found.append(OtherLeast(one, there.reached(least_size(there))))
        except SimulatorError as error:
            found.append(OtherLeast(one, None, str(error).partition("\n")[0]))
    return found


def table(several: Sequence[OtherLeast], target: Target) -> str:
    """Return *several* as a table of the least sizes, the fewest GPUs first."""
    rows = []
    for one in sorted(several, key=lambda one: (one.reached is None, one.reached.gpus if one.reached else 0)):
        price = "" if one.given.price is None else f"{target.currency}{one.given.price:g}"
        if one.reached is None:
            rows.append([one.given.name, "-", "", price, "", "", one.why])
            continue
        whole = one.reached.summary().get("training") or {}
        days = Target("days", 0.0).show(whole["days"]) if whole else ""
        cost = Target("cost", 0.0, target.currency).show(whole["cost"]) if whole.get("cost") else ""
        step = show(one.reached.judged.seconds, "time")
        rows.append([one.given.name, one.reached.where, step, price, days, cost, one.reached.judged.candidate.name])
    head = ["cluster", "least", "step", "GPU-hour", "run", "cost", ""]
    return plain_text.table(rows, head, "lrrrrrl")
