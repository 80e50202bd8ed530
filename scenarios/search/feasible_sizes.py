"""A question beside the best plan: the largest size that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clustersim.scenarios.alternatives.candidate import Candidate
from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.build.memory_need import of_capacity
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.planner import Judged, Planner, Unwatched, Watch
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.validation import listed, near
from clustersim.workloads.parallelism._parallelism import divisors

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
