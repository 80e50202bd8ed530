"""How many GPUs are needed: the least cluster whose best plan meets a target, and what would do with a smaller one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.planned_sizes import MOST_NODES, Clusters, Reached, sizes
from clustersim.scenarios.search.planner import Unwatched, Watch
from clustersim.scenarios.search.target import Target
from clustersim.scenarios.search.target_clusters import OtherCluster, OtherLeast, leasts, table
from clustersim.scenarios.search.target_relaxations import Relaxation, relaxations
from clustersim.simulator.reading.errors import ScenarioError

POWERS = tuple(2**power for power in range(MOST_NODES.bit_length()))
"""Numbers of nodes that are tried first."""


@dataclass(frozen=True)
class LeastCluster:
    """The least cluster whose best plan meets *target*: what is *reached* there.

    *smaller*: the next smaller size on which a plan fits and what is reached there; the next one and None if none
    fits; None below one node.
    *larger*: what is reached on twice the nodes; None if nothing fits. *relaxations*: changes on the smaller size.
    *missed*: values of the sizes that were simulated and miss, by nodes. *others*: the least of other clusters.
    """

    scenario: Scenario
    target: Target
    reached: Reached
    smaller: tuple[int, Reached | None] | None
    larger: Reached | None
    relaxations: Sequence[Relaxation]
    missed: Mapping[int, float]
    others: Sequence[OtherLeast] = ()

    def report(self) -> str:
        """Return the answer as lines."""
        told = [f"{self.reached.where} are the least that meet the target of {self.target.words}"]
        told.append(f"  with {self.reached.judged.candidate.name}")
        told.append("  " + self._numbers(self.reached))
        told.append(self._smaller())
        told += [f"  {line}" for line in self._relaxed()]
        if self.larger:
            missed = "" if self.target.is_met(self.larger.value) else ", which misses the target"
            told.append(f"twice the nodes, {self.larger.where}: {self._numbers(self.larger)}{missed}")
        if self.others:
            told += ["the least of other clusters that meets it:", table(self.others, self.target)]
        return "\n".join(told)

    def _numbers(self, one: Reached) -> str:
        numbers = one.summary()
        whole = numbers.get("training") or {}
        parts = [f"{one.judged.seconds:.4g} s a step"]
        parts += [Target("days", 0.0).show(whole["days"])] if whole else []
        if whole.get("cost"):
            parts.append(f"cost {Target('cost', 0.0, self.target.currency).show(whole['cost'])}")
        rate = numbers["tokens_per_s_per_gpu"]
        parts += [Target("tokens_per_s_per_gpu", 0.0).show(rate)] if rate else []
        return ", ".join(parts)

    def _smaller(self) -> str:
        if self.smaller is None:
            return "there is no smaller cluster than one node"
        nodes, reached = self.smaller
        if reached is None:
            return f"no smaller size holds a plan; on {nodes:,} node{'s' if nodes > 1 else ''} with"
        missed = self.target.show(reached.value)
        return f"the next smaller size on which a plan fits, {reached.where}, misses it: {missed}; with"

    def _relaxed(self) -> Iterator[str]:
        """Yield what would do with the smaller size."""
        for one in self.relaxations:
            yield one.line(self.target)
        if self.smaller and self.smaller[1] is not None:
            value = self.smaller[1].value
            yield f"a target of {self.target.show(value)}: met as it is"
            if (price := self._price) is not None:
                yield f"a GPU-hour at {self.target.currency}{price:.4g}: meets the target"

    @property
    def _price(self) -> float | None:
        """The price of a GPU-hour at which the smaller size meets a target of money; None for other targets."""
        cost = self.scenario.specification.cost
        if self.target.kind != "cost" or cost is None or self.smaller is None or self.smaller[1] is None:
            return None
        return cost.gpu_hour * self.target.amount / self.smaller[1].value

    def summary(self) -> dict[str, Any]:
        """Return the answer for `--json`."""
        target = self.target
        of_days = {"days": target.amount, "slower": {str(one): days for one, days in self.missed.items()}}
        return {
            "name": self.scenario.name,
            "target": {"kind": target.kind, "amount": target.amount},
            **(of_days if target.kind == "days" else {}),
            **self.reached.summary(),
            "value": self.reached.value,
            "smaller": self._smaller_numbers(),
            "larger": {**self.larger.summary(), "value": self.larger.value} if self.larger else None,
            "other_clusters": [one.summary() for one in self.others],
        }

    def _smaller_numbers(self) -> dict[str, Any] | None:
        if self.smaller is None:
            return None
        nodes, reached = self.smaller
        return {
            **({**reached.summary(), "value": reached.value} if reached else {"nodes": nodes, "value": None}),
            "relaxed": [
                {"set": dict(one.sets), "value": one.reached.value if one.reached else None, "met": one.met}
                for one in self.relaxations
            ],
            **({"gpu_hour": self._price} if self._price is not None else {}),
        }


def least_cluster(
    scenario: Scenario,
    target: Target,
    processes: int = 1,
    watch: Watch | None = None,
    others: Sequence[OtherCluster] = (),
) -> LeastCluster:
    """Return the least cluster on which the best plan of *scenario* meets *target*, and the least of *others*.

    Sizes are those of `sizes`. Doubling finds one that does. Days fall as nodes are added, so that only sizes above the
    last power of two that misses are tried then; cost and tokens/s/GPU need not be monotone, so that all smaller
    sizes are tried. Between powers of two degrees may not divide, so that sizes are tried one by one from the
    least. A size whose lower bound misses is not simulated.

    Raises `ScenarioError` if no size does, or if the scenario lacks what the target counts, or a number of nodes.
    """
    if fault := target.fault(scenario):
        path, message = fault
        raise scenario.document.error(path, message, at_key=True)
    if not isinstance(scenario.document.get(("cluster", "nodes")), int):
        raise scenario.document.error(("cluster",), "has no number of nodes that could vary", at_key=True)
    clusters = Clusters(scenario, target, processes, watch or Unwatched())
    nodes = least_size(clusters)
    reached = clusters.reached(nodes)
    assert reached is not None
    smaller = _next_smaller(clusters, nodes)
    found = (smaller, clusters.reached(smaller)) if smaller else None
    larger = clusters.reached(2 * nodes)
    relaxed = list(relaxations(clusters, smaller)) if smaller else []
    instead = leasts(clusters, others, least_size)
    return LeastCluster(scenario, target, reached, found, larger, relaxed, clusters.missed, instead)


def least_size(clusters: Clusters) -> int:
    """Return the least number of nodes of *clusters* that meets their target. Raises `ScenarioError` if none does."""
    return least_nodes(clusters.meets, monotone=clusters.target.kind == "days") or _beside_the_best(clusters)


def least_nodes(meets: Callable[[int], bool], *, monotone: bool) -> int | None:
    """Return the least of `sizes` that *meets*, up to the first power of two that does; None if no power of two does.

    *monotone*: what a power of two misses is missed by all sizes below it.

    >>> least_nodes(lambda nodes: nodes >= 40, monotone=True)
    40
    >>> least_nodes(lambda nodes: nodes in (3, 8), monotone=False)
    3
    """
    power = next((one for one in POWERS if meets(one)), None)
    if power is None:
        return None
    between = sizes(power // 2 + 1 if monotone else 1, power)
    return next((one for one in between if one not in POWERS and meets(one)), power)


def _beside_the_best(clusters: Clusters) -> int:
    """Return the least size up to twice the best power of two that meets a target that no power of two meets.

    Raises `ScenarioError` if none does.
    """
    best = clusters.best_of(POWERS)
    around = sizes(1, 2 * best.nodes) if best and clusters.target.kind != "days" else []
    if (nodes := next((one for one in around if clusters.meets(one)), None)) is not None:
        return nodes
    told = f"no plan on up to {MOST_NODES:,} nodes meets the target of {clusters.target.words}"
    best = clusters.best_of([*POWERS, *around])
    if best is None:
        raise ScenarioError(f"{told}: none fits on any number of nodes that was tried; clustersim plan says why")
    raise ScenarioError(
        f"{told}; the best that was found is {clusters.target.show(best.value)}, on {best.where} "
        f"with {best.judged.candidate.name}"
    )


def _next_smaller(clusters: Clusters, nodes: int) -> int | None:
    """Return the next size below *nodes* on which a plan fits; without one, the next one; None below one node."""
    below = sizes(1, nodes)[::-1]
    return next((one for one in below if clusters.reached(one)), below[0] if below else None)
