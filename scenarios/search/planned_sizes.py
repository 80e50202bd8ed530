"""What the best plans reach on clusters of several sizes, by what a target counts, each size planned once. A target is
at most so many days or so much money, or at least so many tokens/s of each GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import inf, isfinite
from typing import Any, Literal

from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.layer_sums import ALMOST
from clustersim.scenarios.search.planner import Judged, Planner, Unwatched, Watch
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, UNITS, parse, show_long

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


@dataclass(frozen=True)
class Target:
    """At most *amount* days or money of the whole run, or at least *amount* tokens/s/GPU, by *kind*.

    *currency*: the sign before an amount of money. Nothing is converted: it is that of ``cost.gpu_hour``.
    """

    kind: Kind
    amount: float
    currency: str = ""

    @property
    def is_least(self) -> bool:
        """True if *amount* is the least that is wanted, not the most."""
        return self.kind == "tokens_per_s_per_gpu"

    def is_met(self, value: float) -> bool:
        """Return whether *value* meets the target."""
        return value >= self.amount if self.is_least else value <= self.amount

    def loss(self, value: float) -> float:
        """Return a number that is less the better *value* is."""
        return -value if self.is_least else value

    def of(self, result: Mapping[str, Any], gpus: int) -> float:
        """Return the value of a simulated *result* on *gpus* GPUs."""
        if self.is_least:
            return float(result["tokens_per_s"]) / gpus
        return float(result["training"][self.kind])

    def of_step(self, seconds: float, gpus: int, scenario: BuiltScenario) -> float:
        """Return the value of steps of *seconds* on *gpus* GPUs."""
        training, cost, model = scenario.specification.training, scenario.specification.cost, scenario.model
        assert training is not None
        assert model is not None
        if self.is_least:
            return training.global_batch_size * model.tokens_per_sample / (seconds * gpus)
        samples = training.samples or (training.tokens or 0.0) / (model.tokens_per_sample or 1)
        whole = samples / training.global_batch_size * seconds
        if self.kind == "days":
            return whole / SECONDS_PER_DAY
        assert cost is not None
        return whole / SECONDS_PER_HOUR * gpus * cost.gpu_hour

    def show(self, value: float) -> str:
        """Return *value* with its unit.

        >>> Target("cost", 2e6, "$").show(1.5e6), Target("days", 30).show(30)
        ('$1,500,000', '30 days')
        """
        if self.kind == "cost":
            return f"{self.currency}{value:,.0f}" if value >= 100 else f"{self.currency}{value:.3g}"
        if self.kind == "days":
            return show_long(value * SECONDS_PER_DAY)
        return f"{value:,.0f} tokens/s/GPU" if value >= 1000 else f"{value:.3g} tokens/s/GPU"

    @property
    def words(self) -> str:
        """The target in words."""
        return f"{'at least' if self.is_least else 'at most'} {self.show(self.amount)}"

    def fault(self, scenario: BuiltScenario) -> tuple[tuple[str, ...], str] | None:
        """Return the path of the section of *scenario* that lacks what the target counts, and what; else None."""
        training, cost, model = scenario.specification.training, scenario.specification.cost, scenario.model
        if self.is_least:
            known = model is not None and model.tokens_per_sample
            return None if known else (("model",), "has no tokens, so there are no tokens/s/GPU: give days")
        if training is None or not (training.tokens or training.samples):
            return ("training",), "gives no length of the run: give tokens, or samples"
        if self.kind == "cost" and (cost is None or not cost.gpu_hour):
            why = "a target in money needs the price of a GPU: give cost.gpu_hour, e.g. --set cost.gpu_hour=2"
            return ("cost",) if cost else (), why
        return None


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
        seconds = planner.by_seconds(planner.open).least()
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


EXAMPLES = '"30 days" (also h and years), "$2M" or "50 tokens/s/GPU"'

_MONEY = re.compile(r"([$€£¥₽])\s*([\d_,.]*\d(?:\.|e[+-]?\d+)?)\s*([KMBT]?)", re.IGNORECASE)
_RATE = re.compile(r"([\d_,.]*\d(?:e[+-]?\d+)?)\s*([KM]?)\s*tokens/s/GPU", re.IGNORECASE)
_TIME = re.compile(r"[-+.\d][\d_,.]*(?:e[+-]?\d+)?\s*([^\d\s].*)", re.IGNORECASE)

_FACTORS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

Kind = Literal["days", "cost", "tokens_per_s_per_gpu"]


def target(text: str) -> Target:
    """Return the target that *text* names. Raises `ScenarioError`, with examples.

    >>> target("36 h"), target("$2.5M")
    (Target(kind='days', amount=1.5, currency=''), Target(kind='cost', amount=2500000.0, currency='$'))
    >>> target("50 tokens/s/GPU")
    Target(kind='tokens_per_s_per_gpu', amount=50.0, currency='')
    """
    found = _read(text.strip())
    if found is None or not isfinite(found.amount):
        raise ScenarioError(f'--target "{text[:40]}": {_wrong(text.strip())}; write {EXAMPLES}')
    if found.amount <= 0:
        raise ScenarioError(f'--target "{text[:40]}": must be above 0; write {EXAMPLES}')
    return found


def _read(text: str) -> Target | None:
    """Return the target that *text* names; None if it names none."""
    try:
        if money := _MONEY.fullmatch(text):
            return Target("cost", _number(money[2], money[3]), money[1])
        if rate := _RATE.fullmatch(text):
            return Target("tokens_per_s_per_gpu", _number(rate[1], rate[2]))
        return Target("days", parse(text, "time") / SECONDS_PER_DAY)
    except ValueError:
        return None


def _number(digits: str, suffix: str) -> float:
    return float(digits.replace(",", "").replace("_", "")) * _FACTORS[suffix.upper()]


def _wrong(text: str) -> str:
    unit = _TIME.fullmatch(text)
    if unit and unit[1] not in UNITS["time"]:
        return f'"{unit[1]}" is not a unit of a target'
    return "has no unit" if re.fullmatch(r"[\d_,.]+", text) else "is not a target"
