"""Ragged arrays: rows of unequal lengths that stand one after the other in a flat one."""

from __future__ import annotations

import numpy as np

from simulator.hashing import Indices


def places(begins: Indices, lengths: Indices) -> Indices:
    """The places in the flat array of all rows that begin at *begins* and have those *lengths*, row after row.

    >>> places(np.array([4, 0]), np.array([2, 3])).tolist()
    [4, 5, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    return np.arange(lengths.sum()) + np.repeat(begins - ends + lengths, lengths)
