"""Hashes of many values at once, and colours: a number for each label, the same for equal ones."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Colours = NDArray[np.uint64]
Indices = NDArray[np.int64]


def mixed(values: Colours) -> Colours:
    """A well-spread 64-bit hash of each value (the finaliser of splitmix64, Steele, Lea and Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            z ^= z >> np.uint64(shift)
            z *= np.uint64(factor)
        return z


def hashed(labels: Sequence[object]) -> Colours:
    """A colour for each label, the same for equal ones within a call."""
    numbers: dict[object, int] = {}
    return np.fromiter((numbers.setdefault(label, len(numbers)) for label in labels), np.uint64, len(labels))


def numbered(objects: Sequence[Hashable]) -> Indices:
    """A number for each of *objects*, the same for equal ones; quick where few of them stand in many places."""
    _, first, which = np.unique(np.fromiter(map(id, objects), np.int64), return_index=True, return_inverse=True)
    return hashed([objects[place] for place in first.tolist()]).astype(np.int64)[which]


def sorted_once(values: NDArray[Any]) -> NDArray[Any]:
    """The distinct *values*, ascending; for many values much quicker than `numpy.unique`, which hashes them."""
    ascending = np.sort(values)
    return ascending[np.flatnonzero(np.r_[True, ascending[1:] != ascending[:-1]])] if len(values) else ascending


def firsts(classes: Indices) -> Indices:
    """The place of the first of each class; *classes* are numbered from 0."""
    first = np.empty(classes.max(initial=-1) + 1, np.int64)
    first[classes[::-1]] = np.arange(len(classes))[::-1]  # of several the last assigned stays
    return first
