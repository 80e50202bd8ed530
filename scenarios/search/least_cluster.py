"""How many GPUs are needed: the least cluster whose best plan meets a target, and what would let a smaller one do:
another GPU, batch or number format, each planned and simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.planned_sizes import MOST_NODES, Clusters, Reached, Target, sizes
from clustersim.scenarios.search.planner import Unwatched, Watch
from clustersim.scenarios.search.questions import OtherCluster, OtherLeast, leasts, table
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
from clustersim.simulator.reading.lookup import names
from clustersim.topologies.catalogue import GPUS, device, link

POWERS = tuple(2**power for power in range(MOST_NODES.bit_length()))
"""Numbers of nodes that are tried first."""


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
