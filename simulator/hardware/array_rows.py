"""Sequences that are stored as one array: of whole numbers (the program of each rank), and of tuples of them (groups of
ranks, transfers of a step).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar, cast, overload

import numpy as np

from clustersim.simulator.hardware.hashing import Indices

Row = TypeVar("Row", bound=tuple[int, ...])


class Rows(Sequence[Row]):
    """The rows of *array*, of shape ``(rows, columns)``; a row is a tuple, made when it is read.

    They equal a tuple of equal rows, and have its hash, which is found once.

    >>> rows = Rows(np.arange(4).reshape(2, 2))
    >>> rows, rows[1], rows[:1], rows == ((0, 1), (2, 3)), len({rows, Rows(rows.array), ((0, 1), (2, 3))})
    (((0, 1), (2, 3)), (2, 3), ((0, 1),), True, 1)
    """

    def __init__(self, array: Indices) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, number: int) -> Row: ...

    @overload
    def __getitem__(self, number: slice) -> Rows[Row]: ...

    def __getitem__(self, number: int | slice) -> Row | Rows[Row]:
        found: Any = self.array[number]
        return Rows(found) if isinstance(number, slice) else cast("Row", tuple(found.tolist()))

    def __iter__(self) -> Iterator[Row]:
        return cast("Iterator[Row]", map(tuple, self.array.tolist()))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Rows):
            return self is other or np.array_equal(self.array, other.array)
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class WholeNumbers(Sequence[int]):
    """The numbers of *array*. They equal a tuple of equal numbers, and have its hash.

    >>> numbers = WholeNumbers(np.array([2, 1, 2]))
    >>> numbers, numbers[1], numbers[1:], numbers == (2, 1, 2), len({numbers, (2, 1, 2)})
    ((2, 1, 2), 1, (1, 2), True, 1)
    """

    def __init__(self, array: Indices) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> WholeNumbers: ...

    def __getitem__(self, place: int | slice) -> int | WholeNumbers:
        return WholeNumbers(self.array[place]) if isinstance(place, slice) else int(self.array[place])

    def __iter__(self) -> Iterator[int]:
        return iter(self.array.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, WholeNumbers):
            return self is other or np.array_equal(self.array, other.array)
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))
