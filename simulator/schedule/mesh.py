"""A mesh arranges ranks along named axes; communication names an axis and a coordinate on it, never global ranks.

Degrees belong to a layout: named axes over a set of ranks. A mesh is made of one layout or several.

>>> mesh = Mesh.regular({"tp": 2, "dp": 2})
>>> mesh.axes["tp"].groups
((0, 1), (2, 3))
>>> mesh.axes["dp"].groups
((0, 2), (1, 3))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import prod

import numpy as np

from clustersim.simulator.hardware.array_rows import Rows
from clustersim.simulator.hardware.hashing import Indices
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError

NOWHERE = -1
"""The group and the coordinate of a rank that is not on an axis."""


Groups = Rows[tuple[int, ...]]
"""Groups of equal size."""


@dataclass(frozen=True)
class Axis:
    """A set of ordered *groups* of ranks, each rank in at most one of them: a tuple, or `Rows`."""

    groups: Sequence[tuple[int, ...]]

    def __post_init__(self) -> None:
        if len(self._members) and np.bincount(self._members).max() > 1:
            rank, _ = Counter(self._members.tolist()).most_common(1)[0]
            raise ScheduleError(f"rank {rank} is twice on one axis")

    @cached_property
    def lengths(self) -> Indices:
        """The number of ranks of each group."""
        if isinstance(self.groups, Rows):
            return np.full(len(self.groups), self.groups.array.shape[1], np.int64)
        return np.fromiter(map(len, self.groups), np.int64, len(self.groups))

    @cached_property
    def _members(self) -> Indices:
        """The ranks of all groups, one group after the other."""
        if isinstance(self.groups, Rows):
            return self.groups.array.reshape(-1)
        return np.fromiter(chain.from_iterable(self.groups), np.int64, self.lengths.sum())

    @cached_property
    def members(self) -> Indices:
        """The ranks of each group, one row for each group; shorter rows end with `NOWHERE`."""
        if isinstance(self.groups, Rows):
            return self.groups.array
        rows = np.full((len(self.lengths), int(self.lengths.max(initial=0))), NOWHERE, np.int64)
        rows[np.arange(rows.shape[1]) < self.lengths[:, None]] = self._members
        return rows

    @cached_property
    def _places(self) -> Indices:
        """`places` of the ranks up to the last one on this axis."""
        # the last column is for what shorter rows of members end with
        places = np.full((2, int(self._members.max(initial=NOWHERE)) + 2), NOWHERE, np.int64)
        places[0][self.members] = np.arange(self.members.shape[0])[:, None]
        places[1][self.members] = np.arange(self.members.shape[1])
        return places[:, :-1]

    def place(self, rank: int) -> tuple[int, int] | None:
        """(number of the group, coordinate in it) of *rank*; None if the rank is not on this axis."""
        if not 0 <= rank < self._places.shape[1]:
            return None
        group, coordinate = self._places[:, rank].tolist()
        return None if group == NOWHERE else (group, coordinate)

    def places(self, ranks: int) -> Indices:
        """The number of the group and the coordinate of each of *ranks* ranks, of shape ``(2, ranks)``.

        Both are `NOWHERE` for a rank that is not on this axis.
        """
        beyond = ranks - self._places.shape[1]
        if beyond <= 0:
            return self._places[:, :ranks]
        return np.pad(self._places, ((0, 0), (0, beyond)), constant_values=NOWHERE)[:, :ranks]

    def relabelled(self, number_of: Sequence[int]) -> Axis:
        """The same axis where rank r is called ``number_of[r]``."""
        if isinstance(self.groups, Rows):
            return Axis(Rows(np.array(number_of, np.int64)[self.groups.array]))
        return Axis(tuple(tuple(number_of[rank] for rank in group) for group in self.groups))


def axis_of(members: Indices) -> Axis:
    """The axis with a group for each row of *members*, without `NOWHERE`.

    >>> axis_of(np.array([[0, 2], [1, NOWHERE]])).groups
    ((0, 2), (1,))
    """
    present = members != NOWHERE
    sizes = present.sum(axis=1)
    if (sizes == sizes[:1]).all():
        return Axis(Rows(members[present].reshape(len(members), int(sizes.max(initial=0)))))
    return Axis(tuple(tuple(row[own].tolist()) for row, own in zip(members, present, strict=True)))


@dataclass(frozen=True)
class Layout:
    """*degrees* of named axes over *ranks* (default: 0, 1, ...); the first axis varies fastest, as Megatron writes it.

    >>> Layout({"tp": 2, "dp": 2}, ranks=range(4, 8)).groups("dp")
    ((4, 6), (5, 7))
    """

    degrees: Mapping[str, int]
    ranks: Sequence[int] | None = None

    @property
    def size(self) -> int:
        """The number of ranks."""
        return prod(self.degrees.values())

    def groups(self, axis: str) -> Groups:
        """The groups of *axis*, in order of their first ranks."""
        names = list(self.degrees)
        shape = [self.degrees[name] for name in reversed(names)]
        ranks = np.arange(self.size) if self.ranks is None else np.array(self.ranks, np.int64)
        grid = ranks.reshape(shape)
        rows = np.moveaxis(grid, len(names) - 1 - names.index(axis), -1).reshape(-1, self.degrees[axis])
        return Rows(np.ascontiguousarray(rows))


@dataclass(frozen=True, slots=True)
class Mesh:
    """*world_size* ranks and the axes over which they communicate.

    Axes with a dot in their names (``ps.0``, ``ps.1``) form a family, ``ps``; reports name the family.
    """

    world_size: int
    axes: Mapping[str, Axis]

    @classmethod
    def regular(cls, sizes: Mapping[str, int]) -> Mesh:
        """The full grid; the first axis varies fastest with the rank, as Megatron writes it."""
        return cls.of(Layout(sizes))

    @classmethod
    def of(cls, *layouts: Layout) -> Mesh:
        """The mesh of *layouts*: several over the same ranks with axes of their own, or over different ranks.

        Two stages of a pipeline with 3 replicas and 1:

        >>> Mesh.of(Layout({"dp": 3}), Layout({"dp": 1}, ranks=[3])).axes["dp"].groups
        ((0, 1, 2), (3,))
        """
        groups: dict[str, list[Groups]] = {}
        for layout in layouts:
            for axis in layout.degrees:
                groups.setdefault(axis, []).append(layout.groups(axis))
        axes = {axis: Axis(_together(several)) for axis, several in groups.items()}
        # every axis of a layout has all of its ranks
        ranks = [layout.groups(axis).array.reshape(-1) for layout in layouts for axis in [*layout.degrees][:1]]
        return cls(int(np.count_nonzero(np.bincount(np.concatenate(ranks)))) if ranks else 0, axes)

    def joint(self, *names: str) -> Axis:
        """One axis over the axes *names*: a group holds the ranks that differ in these coordinates only.

        The first of *names* varies fastest.

        >>> Mesh.regular({"tp": 2, "cp": 2, "dp": 2}).joint("cp", "dp").groups
        ((0, 2, 4, 6), (1, 3, 5, 7))
        """
        first, *others = names
        joined = self.axes[first].members
        for name in others:
            # the first ranks of the groups so far are joined along the next axis; the last entry is that of `NOWHERE`
            group = np.full(self.world_size + 1, NOWHERE)
            group[joined[:, 0]] = np.arange(len(joined))
            heads = group[self.axes[name].members]
            heads = heads[heads[:, 0] != NOWHERE]
            joined = np.append(joined, np.full((1, joined.shape[1]), NOWHERE), axis=0)[heads]
            joined = joined.reshape(len(heads), -1)
        return axis_of(joined)

    def with_axis_after(self, before: str, name: str, axis: Axis) -> Mesh:
        """The mesh with a further *axis* of that *name*, listed after the axis *before*."""
        axes: dict[str, Axis] = {}
        for known, own in self.axes.items():
            axes[known] = own
            if known == before:
                axes[name] = axis
        return Mesh(self.world_size, axes)

    def replicated(self, axis: str, size: int) -> Mesh:
        """*size* copies of the mesh; rank r of copy i becomes ``r + i * world_size``, and *axis* joins the copies."""
        if axis in self.axes:
            raise ScheduleError(f'the mesh has an axis "{axis}" already')
        world = self.world_size
        axes = {
            name: Axis(tuple(tuple(r + i * world for r in group) for i in range(size) for group in old.groups))
            for name, old in self.axes.items()
        }
        axes[axis] = Axis(tuple(tuple(r + i * world for i in range(size)) for r in range(world)))
        return Mesh(world * size, axes)

    def extended(self, ranks: int, axes: Mapping[str, Axis]) -> Mesh:
        """The mesh with *ranks* more ranks at the end and further, irregular *axes*."""
        return Mesh(self.world_size + ranks, {**self.axes, **axes})

    def relabelled(self, number_of: Sequence[int]) -> Mesh:
        """The same mesh where rank r is called ``number_of[r]``."""
        return Mesh(self.world_size, {name: axis.relabelled(number_of) for name, axis in self.axes.items()})


def _together(several: Sequence[Groups]) -> Sequence[tuple[int, ...]]:
    """The groups of *several*, one after the other."""
    if len({rows.array.shape[1] for rows in several}) == 1:
        return Rows(np.concatenate([rows.array for rows in several]))
    return tuple(chain.from_iterable(several))


def family(axis: str) -> str:
    """The name by which an axis is reported: ``ps`` for ``ps.3``."""
    return axis.partition(".")[0]
