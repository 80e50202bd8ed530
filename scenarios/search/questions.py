"""Questions beside the best plan: which other cluster of the catalogue meets a target, at a price of its own; and the
largest size that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from clustersim.scenarios.alternatives.candidate import Candidate
from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.build.memory_need import of_capacity
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.planned_sizes import Clusters, Reached, Target, elsewhere
from clustersim.scenarios.search.planner import Judged, Planner, Unwatched, Watch
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
from clustersim.simulator.reading.lookup import names
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.validation import listed, near
from clustersim.workloads.parallelism._parallelism import divisors

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


KEYS: Mapping[str, str] = {
    "micro_batch_size": "training.micro_batch_size",
    "batch": "training.global_batch_size",
    "sequence": "model.seq_length",
    "model": "model.num_layers",
}
"""What may be largest, and the key that it is."""

STEPS: Mapping[str, int] = {"sequence": 1024, "model": 1}
"""Largest sizes are found to multiples of these."""

MOST = 64
"""Times the given size; beyond it memory is taken not to limit."""

TRIED = 64
"""Candidates with the lowest bound of memory that are tried for a size."""


@dataclass(frozen=True)
class Largest:
    """The largest *size* of *what* that fits, with the *candidate* that does and its simulation.

    *limited*: False if memory allows even `MOST` times the given size.
    """

    what: str
    size: int
    judged: Judged
    scenario: Scenario
    within: float
    limited: bool = True

    def report(self) -> str:
        """Return the answer as a sentence."""
        need = of_capacity(self.judged.result["need_bytes"], self.within)
        how = f"with {self.judged.candidate.name}: {need}, {self.judged.seconds:.4g} s a step"
        key = KEYS[self.what]
        if not self.limited:
            return f"memory does not limit {key}: {self.size:,}, {MOST} times the given size, fits {how}"
        return f"the largest {key} that fits is {self.size:,}{self._parameters()}, {how}"

    def _parameters(self) -> str:
        model = self.scenario.model
        if self.what != "model" or model is None:
            return ""
        return f" ({model.parameters / 1e9:.4g} billion parameters)"

    def summary(self) -> dict[str, Any]:
        """Return the answer for `--json`."""
        return {
            "name": self.scenario.name,
            "largest": KEYS[self.what],
            "size": self.size,
            "limited": self.limited,
            "set": {**self.judged.candidate.settings, KEYS[self.what]: self.size},
            "step_time_s": self.judged.seconds,
            "need_bytes": self.judged.result["need_bytes"],
        }


def measure(name: str) -> str:
    """Return *name*, a key of `KEYS`. Raises `ScenarioError`."""
    if name not in KEYS:
        hint = near(name, KEYS)
        raise ScenarioError(f"--largest {name}: must be {listed(KEYS)}" + (f"; {hint}" if hint else ""))
    return name


def largest(scenario: Scenario, what: str, processes: int = 1, watch: Watch | None = None) -> Largest:
    """Return the largest *what* (a key of `KEYS`) with which some candidate of *scenario* fits.

    Raises `ScenarioError` if nothing fits.
    """
    found: dict[int, tuple[Planner, Candidate]] = {}

    def fits(size: int) -> bool:
        fitting = _fitting(scenario, what, size, processes, watch)
        if fitting is not None:
            found[size] = fitting
        return fitting is not None

    given = _given(scenario, what)
    if what == "micro_batch_size":
        training = scenario.specification.training
        assert training is not None
        batch = training.global_batch_size
        size = next((one for one in reversed(divisors(batch, batch)) if fits(one)), 0)
        limited = size < batch
    else:
        size, limited = greatest(fits, given, STEPS.get(what, given))
    if not size:
        raise ScenarioError(f"no candidate fits with any {KEYS[what]}: more GPUs are needed")
    planner, candidate = found[size]
    return Largest(what, size, planner.simulate([candidate])[0], planner.scenario, planner.within, limited)


def greatest(fits: Callable[[int], bool], given: int, step: int) -> tuple[int, bool]:
    """Return the greatest multiple of *step* that *fits*, and whether it is below `MOST` times *given*; 0 if none does.

    What fits, fits for all smaller sizes.

    >>> greatest(lambda size: size <= 700, 128, 64), greatest(lambda size: True, 2, 2)
    ((640, True), (128, False))
    """
    low, high = 0, max(1, given // step)
    most = high * MOST
    while high <= most and fits(high * step):
        low, high = high, 2 * high
    if high > most:
        return low * step, False
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return low * step, True


def _given(scenario: Scenario, what: str) -> int:
    section, _, key = KEYS[what].partition(".")
    value = getattr(getattr(scenario.specification, section), key, None)
    if what == "micro_batch_size":
        return 1
    if not isinstance(value, int):
        raise scenario.document.error((section,), f"has no {key}, so there is no largest {what}")
    return value


def _fitting(
    scenario: Scenario, what: str, size: int, processes: int, watch: Watch | None
) -> tuple[Planner, Candidate] | None:
    """Return a candidate that fits with that *size*; None if none does."""
    changes: dict[str, Any] = {KEYS[what]: size}
    if what == "micro_batch_size":
        changes = {"plan.search": {**Space(scenario).search, what: [size]}}
    planner = Planner(scenario.changed(changes, f"--largest {what}"), processes, watch=watch or Unwatched())
    planner.watch.begin(f"trying {KEYS[what]} {size:,}")
    found = planner.fitting(TRIED)
    return (planner, found) if found else None
