"""Ragged arrays: rows of unequal lengths, stored one after the other in a flat array."""

from __future__ import annotations

import numpy as np

from simulator.hashing import Indices


def ragged_arange(begins: Indices, lengths: Indices) -> Indices:
    """The integers from ``begins[i]`` to ``begins[i] + lengths[i] - 1``, for one i after the other.

    >>> ragged_arange(np.array([4, 0]), np.array([2, 3])).tolist()
    [4, 5, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    return np.arange(lengths.sum()) + np.repeat(begins - ends + lengths, lengths)
