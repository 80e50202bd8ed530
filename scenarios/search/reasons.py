"""Why a plan is best: what its neighbours take, which constraint binds, and the nearest candidate of each rejection.

Every number comes from a simulation of the candidate that the sentence names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from clustersim.scenarios.alternatives.candidate import MEMORY, Candidate, described
from clustersim.scenarios.build.memory_need import of_capacity
from clustersim.scenarios.search.planner import Judged, Planner
from clustersim.simulator.reading.dataclass import dataclass

DEGREES = ("tp", "cp", "ep", "pp")
"""Keys that are doubled and halved for the reason: the best candidate with each value stands for it."""

FORMATS = ("precision",)
"""Keys of which all other values are compared so."""

LOOKED_AT = 4
"""Candidates that are estimated to find the fastest one of a kind: those with the lowest bounds."""

REJECTED_LOOKED_AT = 8
"""Candidates that memory rejects of which the one that needs least is found: those with the lowest bounds."""


@dataclass(frozen=True)
class Neighbour:
    """A *candidate* that differs from another in *change*: simulated (*judged*), or *rejected* in words.

    *at_most*: another one with that change may be faster.
    """

    candidate: Candidate
    change: str
    judged: Judged | None = None
    rejected: str = ""
    at_most: bool = False


@dataclass(frozen=True)
class Miss:
    """The nearest rejected *candidate* of a *kind*: *why*, its simulation if it can be scheduled, and what would do.

    *fix*: the fastest candidate that differs in one key and is not rejected; None if there is none.
    """

    kind: str
    candidate: Candidate
    why: str
    judged: Judged | None = None
    fix: Neighbour | None = None


class Reasons:
    """The reasons for the *best* candidate that *planner* has found."""

    def __init__(self, planner: Planner, best: Judged) -> None:
        self.planner, self.best = planner, best
        self.capacity = planner.within

    def neighbours(self) -> list[Neighbour]:
        """Return the best of all candidates with each of `DEGREES` doubled and halved, and with other `FORMATS`."""
        own, found = self.best.candidate.values, list[Neighbour]()
        for key in (*DEGREES, *FORMATS):
            known: list[Any] = []
            for one in self.planner.candidates:
                if key in one.values and one.values[key] not in known:
                    known.append(one.values[key])
            wanted = known if key in FORMATS else [2 * (own.get(key) or 0), (own.get(key) or 0) // 2]
            for value in wanted:
                if value in known and value != own.get(key):
                    found.append(self._best_with(key, value))
        return found

    def _best_with(self, key: str, value: Any) -> Neighbour:
        """Return the best candidate with that *value* of *key*, simulated; else why none can run."""
        planner, change = self.planner, words({key: value})
        those = [one for one in planner.candidates if one.values.get(key) == value]
        allowed = {one.key for one in those}
        others = [one for one in planner.open if one.key in allowed]
        fastest = planner.fastest(others, LOOKED_AT)
        if fastest is None:
            too_large = [one for one in those if planner.kind(one) == MEMORY]
            if not too_large:
                nearest = min(those, key=lambda one: one.distance(self.best.candidate))
                return Neighbour(nearest, change, rejected=self._why(nearest))
            fastest = self._least_too_large(too_large)
        left = [one for one in others if one.key not in planner.journal.estimated]
        faster = planner.maybe_faster(left, planner.estimated_seconds(fastest) or 0.0, 1)
        return Neighbour(fastest, change, planner.simulate([fastest])[0], at_most=bool(faster))

    def _why(self, candidate: Candidate) -> str:
        return self.planner.bounds[candidate.key].why or self.planner.journal.estimated[candidate.key].why

    def binding(self, neighbours: Sequence[Neighbour] = ()) -> Neighbour | None:
        """Return the candidate that memory rejects by least of those that would be faster; None if none is found.

        Looked at are *neighbours* and the candidates with the lowest bounds of memory that may be faster.
        """
        bounds = self.planner.bounds
        rejected = [one for one in self.planner.candidates if self.planner.kind(one) == MEMORY]
        rejected.sort(key=lambda one: bounds[one.key].nbytes)
        near = self.planner.maybe_faster(rejected, self.best.seconds, REJECTED_LOOKED_AT)
        beside = [one.candidate for one in neighbours if one.judged and one.judged.result["need_bytes"] > self.capacity]
        nearest = self._least_memory([*near, *beside], self.best.seconds)
        if nearest is None:
            return None
        judged = self.planner.simulate([nearest])[0]
        change = words(nearest.differences(self.best.candidate))
        return Neighbour(nearest, change, judged) if judged.seconds < self.best.seconds else None

    # Nearest misses.

    def misses(self, binding: Neighbour | None) -> list[Miss]:
        """Return the nearest miss of each kind of rejection; *binding*, if there is one, is that of memory."""
        return [self._miss(kind, rejected, binding) for kind, rejected in sorted(self.planner.rejected().items())]

    def _miss(self, kind: str, rejected: Sequence[Candidate], binding: Neighbour | None) -> Miss:
        if kind == MEMORY:
            nearest = binding.candidate if binding else self._least_too_large(rejected)
            judged = self.planner.simulate([nearest])[0]
            need, bound = judged.result["need_bytes"], self.planner.journal.estimated[nearest.key].nbytes
            why = f"needs {of_capacity(need, self.capacity)}"
            if need <= self.capacity:
                why = f"needs up to {of_capacity(bound, self.capacity)}, by the order of its program"
            return Miss(kind, nearest, why, judged, self._fix(nearest))
        nearest = min(rejected, key=lambda one: one.distance(self.best.candidate))
        return Miss(kind, nearest, self._why(nearest), None, self._fix(nearest))

    def _least_too_large(self, rejected: Sequence[Candidate]) -> Candidate:
        """Return the candidate that needs least of those that would be faster than the best; else of all."""
        near = sorted(rejected, key=lambda one: self.planner.bounds[one.key].nbytes)
        some = self.planner.maybe_faster(near, self.best.seconds, REJECTED_LOOKED_AT) or near[:REJECTED_LOOKED_AT]
        return self._least_memory(some) or some[0]

    def _least_memory(self, some: Sequence[Candidate], below: float = inf) -> Candidate | None:
        """Return the candidate of *some* that needs least memory by estimate; None if none takes less than *below* s.

        They are estimated in the order of their bounds, until no bound is below the least estimate.
        """
        bounds, least, nearest = self.planner.bounds, inf, None
        for one in sorted(some, key=lambda one: bounds[one.key].nbytes):
            if bounds[one.key].nbytes >= least:
                break
            self.planner.estimate([one], within=inf)
            priced = self.planner.journal.estimated[one.key]
            if priced.seconds is not None and priced.seconds < below and priced.nbytes < least:
                least, nearest = priced.nbytes, one
        return nearest

    def _fix(self, candidate: Candidate) -> Neighbour | None:
        """Return the fastest candidate that is not rejected and differs from *candidate* in one key."""
        others = [one for one in self.planner.candidates if one.distance(candidate) == 1]
        others = [one for one in others if not self.planner.kind(one)]
        fastest = self.planner.fastest(self.planner.by_seconds(others).take(LOOKED_AT))
        if fastest is None:
            return None
        change = words(fastest.differences(candidate))
        return Neighbour(fastest, change, self.planner.simulate([fastest])[0])


def words(values: Mapping[str, Any]) -> str:
    """Return *values* by key in words.

    >>> words({"recompute": "full", "data": {"method": "zero", "stage": 1}})
    'recompute full and data zero 1'
    """
    return " and ".join(f"{key} {described(key, value)}" for key, value in values.items())


def sentence(best: Judged, neighbours: Sequence[Neighbour], binding: Neighbour | None, capacity: float) -> str:
    """Return why *best* is best."""
    parts = [_compared(best, one, capacity) for one in neighbours]
    told = f"the best {'; the best '.join(parts)}" if parts else "no other degree was tried"
    return f"{best.candidate.name}: {told}. {_constraint(best, binding, capacity)}."


def _compared(best: Judged, one: Neighbour, capacity: float) -> str:
    if one.judged is None:
        return f"with {one.change} cannot run ({one.rejected.partition(';')[0]})"
    needed = one.judged.result["need_bytes"]
    if needed > capacity:
        return f"with {one.change} needs {of_capacity(needed, capacity)}"
    at_most = "at most " if one.at_most else ""
    return f"with {one.change} takes {at_most}{relative(one.judged.seconds, best.seconds)}"


def _constraint(best: Judged, binding: Neighbour | None, capacity: float) -> str:
    if binding is None or binding.judged is None:
        return "Memory does not bind: of what it rejects, nothing near is faster"
    judged = binding.judged
    need = of_capacity(judged.result["need_bytes"], capacity)
    return f"Memory binds: {binding.change} would take {relative(judged.seconds, best.seconds)}, but needs {need}"


def relative(seconds: float, than: float) -> str:
    """Return how much longer or shorter *seconds* are.

    >>> relative(1.04, 1.0), relative(0.5, 1.0), relative(1.0001, 1.0)
    ('4.0 % longer', '50 % less', 'as long')
    """
    change = 100 * (seconds / than - 1)
    if abs(change) < LEAST:
        return "as long"
    digits = 0 if abs(change) >= 10 else 1
    return f"{abs(change):.{digits}f} % {'longer' if change > 0 else 'less'}"


LEAST = 0.05
"""Per cent below which two times are told as equal."""


def miss_line(miss: Miss, count: int) -> str:
    """Return the line of a report for *count* rejections with the nearest *miss*."""
    line = f"{miss.kind} ({count:,}): {miss.candidate.name}: {miss.why}"
    if miss.fix is None or miss.fix.judged is None:
        return line
    fixed = miss.fix.judged.seconds
    if miss.judged is not None:
        return f"{line}; with {miss.fix.change} it fits and takes {relative(fixed, miss.judged.seconds)}"
    return f"{line}; with {miss.fix.change} it takes {fixed:.4g} s"
