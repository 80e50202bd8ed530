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
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ScheduleError

NOWHERE = -1
"""The group and the coordinate of a rank that is not on an axis."""


@dataclass(frozen=True)
class Axis:
    """A set of ordered groups of ranks, each rank in at most one of them."""

    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(set(chain.from_iterable(self.groups))) < sum(map(len, self.groups)):
            rank, _ = Counter(chain.from_iterable(self.groups)).most_common(1)[0]
            raise ScheduleError(f"rank {rank} is twice on one axis")

    @cached_property
    def _place(self) -> Mapping[int, tuple[int, int]]:
        return {rank: (n, place) for n, group in enumerate(self.groups) for place, rank in enumerate(group)}

    def place(self, rank: int) -> tuple[int, int] | None:
        """(number of the group, coordinate in it) of *rank*; None if the rank is not on this axis."""
        return self._place.get(rank)

    def places(self, ranks: int) -> NDArray[np.int64]:
        """The number of the group and the coordinate of each of *ranks* ranks, of shape ``(2, ranks)``.

        Both are `NOWHERE` for a rank that is not on this axis.
        """
        places = np.full((2, ranks), NOWHERE, np.int64)
        lengths = np.fromiter(map(len, self.groups), np.int64, len(self.groups))
        members = np.fromiter(chain.from_iterable(self.groups), np.int64, lengths.sum())
        places[0, members] = np.repeat(np.arange(len(lengths)), lengths)
        places[1, members] = np.arange(len(members)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return places

    def relabelled(self, number_of: Sequence[int]) -> Axis:
        """The same axis where rank r is called ``number_of[r]``."""
        return Axis(tuple(tuple(number_of[rank] for rank in group) for group in self.groups))


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

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """The groups of *axis*, in order of their first ranks."""
        names = list(self.degrees)
        shape = [self.degrees[name] for name in reversed(names)]
        grid = np.array(range(self.size) if self.ranks is None else self.ranks, np.int64).reshape(shape)
        rows = np.moveaxis(grid, len(names) - 1 - names.index(axis), -1).reshape(-1, self.degrees[axis])
        return tuple(map(tuple, rows.tolist()))


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
        groups: dict[str, list[tuple[int, ...]]] = {}
        for layout in layouts:
            for axis in layout.degrees:
                groups.setdefault(axis, []).extend(layout.groups(axis))
        ranks = {rank for several in groups.values() for group in several for rank in group}
        return cls(len(ranks), {axis: Axis(tuple(several)) for axis, several in groups.items()})

    def joint(self, *names: str) -> Axis:
        """One axis over the axes *names*: a group holds the ranks that differ in these coordinates only.

        The first of *names* varies fastest.

        >>> Mesh.regular({"tp": 2, "cp": 2, "dp": 2}).joint("cp", "dp").groups
        ((0, 2, 4, 6), (1, 3, 5, 7))
        """
        first, *others = names
        groups = {group[0]: group for group in self.axes[first].groups}
        for name in others:
            # the first ranks of the groups so far are joined along the next axis
            heads = (group for group in self.axes[name].groups if group[0] in groups)
            groups = {ranks[0]: tuple(rank for head in ranks for rank in groups[head]) for ranks in heads}
        return Axis(tuple(groups.values()))

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


def family(axis: str) -> str:
    """The name by which an axis is reported: ``ps`` for ``ps.3``."""
    return axis.partition(".")[0]
