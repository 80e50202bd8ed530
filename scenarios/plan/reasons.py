"""Why a plan is best: what its neighbours take, which constraint binds, and the nearest candidate of each rejection.

Every number comes from a simulation of the candidate that the sentence names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from scenarios.plan.planner import Judged, Planner
from scenarios.plan.space import MEMORY, Candidate, described
from scenarios.results.memory_need import of_capacity

DEGREES = ("tp", "pp")
"""Keys that are doubled and halved for the reason."""

LOOKED_AT = 8
"""Candidates that are estimated to find the fastest one of a kind: those with the lowest bounds."""


@dataclass(frozen=True)
class Neighbour:
    """A *candidate* that differs from another in *change*: simulated (*judged*), or *rejected* in words."""

    candidate: Candidate
    change: str
    judged: Judged | None = None
    rejected: str = ""


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
        """Return the best candidate with each of `DEGREES` doubled and halved, as far as there is such a one."""
        found = []
        for key in DEGREES:
            degree = self.best.candidate.values.get(key)
            for other in (2 * degree, degree // 2) if degree else ():
                if other and (candidate := self._with(key, other)) is not None:
                    found.append(self._judged(candidate, f"{key} {other}"))
        return found

    def _with(self, key: str, degree: int) -> Candidate | None:
        """Return the best candidate with another degree, and with what must change with it."""
        changed = dict(self.best.candidate.values) | {key: degree}
        if "sequence_parallel" in changed and key == "tp":
            changed["sequence_parallel"] = bool(changed["sequence_parallel"]) and degree > 1
        virtual = changed.get("virtual_stages")
        if key == "pp" and virtual and (virtual * self.best.candidate.values["pp"]) % degree == 0:
            # as many stages as before, so that their layers divide as before
            changed["virtual_stages"] = virtual * self.best.candidate.values["pp"] // degree
        if key == "pp" and degree == 1:
            # without a pipeline all of its keys have their defaults
            plain = {"schedule": "1f1b", "virtual_stages": None, "layout": None}
            changed |= {name: value for name, value in plain.items() if name in changed}
        candidate = Candidate(changed)
        return None if candidate.key == self.best.candidate.key else candidate

    def _judged(self, candidate: Candidate, change: str) -> Neighbour:
        """Return *candidate* simulated, or why it is rejected."""
        self.planner.bound([candidate])
        bound = self.planner.bounds[candidate.key]
        if bound.kind:
            return Neighbour(candidate, change, rejected=bound.why)
        self.planner.estimate([candidate], within=inf)
        priced = self.planner.journal.estimated[candidate.key]
        if priced.kind:
            return Neighbour(candidate, change, rejected=priced.why)
        return Neighbour(candidate, change, self.planner.simulate([candidate])[0])

    def binding(self, neighbours: Sequence[Neighbour] = ()) -> Neighbour | None:
        """Return the candidate that memory rejects by least of those that would be faster; None if none is found.

        Looked at are *neighbours* and the candidates with the lowest bounds of memory that may be faster.
        """
        bounds = self.planner.bounds
        rejected = [one for one in self.planner.candidates if self.planner.kind(one) == MEMORY]
        faster = [one for one in rejected if bounds[one.key].seconds < self.best.seconds]
        near = sorted(faster, key=lambda one: bounds[one.key].nbytes)[:LOOKED_AT]
        beside = [one.candidate for one in neighbours if one.judged and one.judged.result["need_bytes"] > self.capacity]
        self.planner.estimate(near, within=inf)
        estimated = self.planner.journal.estimated
        timed = [one for one in {one.key: one for one in [*near, *beside]}.values() if estimated[one.key].seconds]
        timed = [one for one in timed if (estimated[one.key].seconds or inf) < self.best.seconds]
        if not timed:
            return None
        nearest = min(timed, key=lambda one: estimated[one.key].nbytes)
        judged = self.planner.simulate([nearest])[0]
        change = words(nearest.differences(self.best.candidate))
        return Neighbour(nearest, change, judged) if judged.seconds < self.best.seconds else None

    # Nearest misses.

    def misses(self) -> list[Miss]:
        """Return the nearest miss of each kind of rejection."""
        return [self._miss(kind, rejected) for kind, rejected in sorted(self.planner.rejected().items())]

    def _miss(self, kind: str, rejected: Sequence[Candidate]) -> Miss:
        if kind == MEMORY:
            nearest = self._least_too_large(rejected)
            judged = self.planner.simulate([nearest])[0]
            why = f"needs {of_capacity(judged.result['need_bytes'], self.capacity)}"
            return Miss(kind, nearest, why, judged, self._fix(nearest))
        nearest = min(rejected, key=lambda one: len(one.differences(self.best.candidate)))
        bound = self.planner.bounds[nearest.key]
        why = bound.why or self.planner.journal.estimated[nearest.key].why
        return Miss(kind, nearest, why, None, self._fix(nearest))

    def _least_too_large(self, rejected: Sequence[Candidate]) -> Candidate:
        """Return the candidate that needs least of those that would be faster than the best; else of all."""
        bounds = self.planner.bounds
        faster = [one for one in rejected if bounds[one.key].seconds < self.best.seconds] or list(rejected)
        some = sorted(faster, key=lambda one: bounds[one.key].nbytes)[:LOOKED_AT]
        self.planner.estimate(some, within=inf)
        return min(some, key=lambda one: self.planner.journal.estimated[one.key].nbytes)

    def _fix(self, candidate: Candidate) -> Neighbour | None:
        """Return the fastest candidate that is not rejected and differs from *candidate* in one key."""
        others = [one for one in self.planner.candidates if len(one.differences(candidate)) == 1]
        others = [one for one in others if not self.planner.kind(one)]
        others.sort(key=lambda one: self.planner.bounds[one.key].seconds)
        self.planner.estimate(others[:LOOKED_AT])
        timed = [
            (seconds, one)
            for one in others[:LOOKED_AT]
            if not self.planner.kind(one) and (seconds := self.planner.journal.estimated[one.key].seconds) is not None
        ]
        if not timed:
            return None
        fastest = min(timed, key=lambda pair: pair[0])[1]
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
    told = f"{best.candidate.name}: " + ("; ".join(parts) if parts else "it has no neighbour in tp or pp")
    return f"{told}. {_constraint(best, binding, capacity)}."


def _compared(best: Judged, one: Neighbour, capacity: float) -> str:
    if one.judged is None:
        return f"{one.change} cannot run ({one.rejected.partition(';')[0]})"
    needed = one.judged.result["need_bytes"]
    if needed > capacity:
        return f"{one.change} needs {of_capacity(needed, capacity)}"
    return f"{one.change} takes {relative(one.judged.seconds, best.seconds)}"


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
