"""Hashes of arrays, and colours: numbers of labels that are equal for equal labels."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Colours = NDArray[np.uint64]
Indices = NDArray[np.int64]
Numbers = NDArray[np.int32] | Indices
"""Numbers of vertices, links or kinds: 32 bits where there are many, ten links and fifty flows for each rank."""
T = TypeVar("T", bound=Hashable)

IN_CACHE = 8192
"""Hashes that are computed together: two arrays of 64 KiB fit the second-level cache, so memory is read once."""

SPARSE = 8
"""Numbers up to this many times their count are looked up in a table, which is faster than to sort them."""


class Numbering(Generic[T]):
    """Distinct values, numbered from 0 in the order of their first use.

    >>> table = Numbering("ab")
    >>> table.number("c"), table.number("a"), table.values
    (2, 0, ('a', 'b', 'c'))
    """

    def __init__(self, values: Iterable[T] = ()) -> None:
        self._numbers: dict[T, int] = {value: number for number, value in enumerate(values)}

    def number(self, value: T) -> int:
        """Return the number of *value*; a new value has a new number."""
        return self._numbers.setdefault(value, len(self._numbers))

    @property
    def values(self) -> tuple[T, ...]:
        """The values by number."""
        return tuple(self._numbers)


def mixed(values: Colours) -> Colours:
    """Return a 64-bit hash of each value (the finaliser of splitmix64, Steele, Lea and Flood, OOPSLA 2014)."""
    z = np.add(values, np.uint64(0x9E3779B97F4A7C15), order="C")
    flat, shifted = z.reshape(-1), np.empty(min(z.size, IN_CACHE), np.uint64)
    for begin in range(0, z.size, IN_CACHE):
        part = flat[begin : begin + IN_CACHE]
        other = shifted[: len(part)]
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            np.right_shift(part, np.uint64(shift), out=other)
            part ^= other
            part *= np.uint64(factor)
        np.right_shift(part, np.uint64(31), out=other)
        part ^= other
    return z


def of_positions(values: Indices, salt: int = 0) -> Colours:
    """Return by row a hash of *values*, each at its position. *salt* distinguishes several hashes of one row.

    A row that equals the one before, as most do, is not hashed again.
    """
    fresh = np.ones(len(values), np.bool_)
    np.any(values[1:] != values[:-1], axis=1, out=fresh[1:])
    found = mixed(values[fresh].view(np.uint64) ^ _positions(values.shape[1], salt)).sum(axis=1)
    return np.asarray(found[np.cumsum(fresh) - 1])


@lru_cache(maxsize=16)
def _positions(count: int, salt: int) -> Colours:
    """Hashes of *count* positions."""
    return mixed(mixed(np.arange(count, dtype=np.uint64)) + np.uint64(salt))


def hashed(labels: Sequence[object]) -> Colours:
    """Return a colour for each label; within a call equal labels have equal colours."""
    numbers: dict[object, int] = {}
    return np.fromiter((numbers.setdefault(label, len(numbers)) for label in labels), np.uint64, len(labels))


def sorted_once(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct *values*, ascending; for many values much faster than `numpy.unique`, which hashes them."""
    ascending = np.sort(values)
    return ascending[np.flatnonzero(np.r_[True, ascending[1:] != ascending[:-1]])] if len(values) else ascending


def firsts(classes: Numbers) -> Indices:
    """Return the index of the first member of each class; *classes* are numbered from 0."""
    first = np.empty(classes.max(initial=-1) + 1, np.int64)
    first[classes[::-1]] = np.arange(len(classes))[::-1]  # of several the last assigned stays
    return first


def first_places(values: NDArray[Any]) -> Indices:
    """Return the index of the first of each of the distinct *values*, ascending.

    >>> first_places(np.array([2, 1, 2])).tolist()
    [0, 1]
    """
    if len(values) and values.min() >= 0 and values.max() < SPARSE * len(values):
        first = np.full(int(values.max()) + 1, len(values))
        first[values[::-1]] = np.arange(len(values))[::-1]  # of several the last assigned stays
        return np.sort(first[first < len(values)])
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.ones(len(values), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    return np.sort(order[begins])


def counted(values: Sequence[T], which: Numbers) -> tuple[list[T], list[int]]:
    """Return the *values* with indices in *which*, in order of first occurrence, and the count of each.

    >>> counted("abc", np.array([2, 0, 2]))
    (['c', 'a'], [2, 1])
    """
    count, places = np.zeros(len(values), np.int64), []
    for begin in range(0, len(which), IN_CACHE):
        part = which[begin : begin + IN_CACHE]
        here = np.bincount(part, minlength=len(values))
        fresh = np.flatnonzero((here > 0) & (count == 0))
        if len(fresh):
            places += fresh[np.argsort(firsts(part)[fresh])].tolist()
        count += here
    return [values[place] for place in places], count[places].tolist()


def representatives_of(representative: Indices) -> Indices:
    """Return the ranks that represent a class, ascending. *representative*: by rank the first rank of its class.

    >>> representatives_of(np.array([0, 1, 0, 1])).tolist()
    [0, 1]
    """
    return np.flatnonzero(representative == np.arange(len(representative)))


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct *values* in order, as ``numpy.unique``; that loads masked arrays, 3 % of a short run.

    >>> distinct(np.array([2, 1, 2])).tolist()
    [1, 2]
    """
    if values.size > IN_CACHE:
        least = values.min()
        span = int(values.max() - least) + 1
        if span <= SPARSE * values.size:
            seen = np.zeros(span, np.bool_)
            seen[values - least] = True
            return np.asarray(np.flatnonzero(seen) + least)
    ordered = np.sort(values, axis=None)
    found: NDArray[np.int64] = ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]
    return found
