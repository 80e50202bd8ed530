"""Every algorithm, executed on symbolic chunks: the data that each rank holds at the end, and the bytes moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from clustersim.simulator.network.proof import ROOTED, built, contribution, execute, prove, start, taken
from clustersim.simulator.network.step import Group, Step
from clustersim.simulator.reading import lookup
from clustersim.simulator.schedule.ops import COLLECTIVES

Nodes = tuple[tuple[int, ...], ...]


def algorithms() -> Iterator[tuple[str, str, Callable[..., list[Step]]]]:
    for name in lookup.names("clustersim.simulator.network.collectives"):
        module = lookup.find("clustersim.simulator.network.collectives", name)
        for kind in COLLECTIVES:
            if hasattr(module, kind):
                yield name, kind, getattr(module, kind)


ALGORITHMS = list(algorithms())


def split(*lengths: int) -> Nodes:
    """Servers of these sizes, positions in order."""
    begins = [sum(lengths[:i]) for i in range(len(lengths))]
    return tuple(tuple(range(begin, begin + length)) for begin, length in zip(begins, lengths, strict=True))


def interleaved(size: int, servers: int) -> Nodes:
    return tuple(tuple(range(i, size, servers)) for i in range(servers))


def rings(nodes: Nodes, channels: int) -> Nodes:
    """Rings that visit server after server, rotated inside and reversed from channel to channel."""
    found = []
    for channel in range(channels):
        ring = [p for node in nodes for p in (*node[channel % len(node) :], *node[: channel % len(node)])]
        found.append(tuple(ring if channel % 2 == 0 else ring[::-1]))
    return tuple(found)


SERVERS = (
    split(4, 4),
    split(4, 4, 4),
    interleaved(12, 3),
    split(1, 1, 1, 1),
    split(4, 3, 2),
    interleaved(11, 3),
    split(1, 6, 4),
    split(1, 4),
    split(3, 5, 3, 1, 2),
)

GROUPS = [
    *(Group(size) for size in range(1, 18)),
    *(Group(size, rings=rings(split(size), 3)) for size in range(1, 18, 3)),
    *(
        Group(sum(map(len, nodes)), nodes, rings(nodes, channels) if channels else ())
        for nodes in SERVERS
        for channels in (0, 1, 2)
    ),
    Group(24, split(8, 8, 8), rings(split(8, 8, 8), 4)),
    Group(32, split(8, 8, 8, 8)),
    # tori: of one slice and of several, of equal and unequal sides
    *(Group(size, split(size), dims=dims) for size, dims in ((9, (3, 3)), (8, (2, 2, 2)), (24, (2, 3, 4)), (6, (6,)))),
    Group(24, split(12, 12), dims=(4, 3)),
    Group(24, interleaved(24, 2), dims=(3, 4)),
]


@pytest.mark.parametrize(("name", "kind", "algorithm"), ALGORITHMS)
def test_every_rank_ends_with_the_right_data(name: str, kind: str, algorithm: Callable[..., list[Step]]) -> None:
    """Also each transfer of the first repetition carries the bytes of its blocks."""
    for group in groups(algorithm):
        for root in roots(group.size) if kind in ROOTED else [0]:
            prove(algorithm, kind, group, 1.0, root)


def roots(size: int) -> Iterator[int]:
    """All ranks of a small group; of a larger one the first and the last two, and two in the middle."""
    return (rank for rank in range(size) if size <= 9 or rank in (0, 1, size // 2 - 1, size // 2, size - 2, size - 1))


def groups(algorithm: Callable[..., list[Step]]) -> list[Group]:
    """The groups for which *algorithm* is."""
    return [group for group in GROUPS if taken(algorithm, group.size)]


@pytest.mark.parametrize(("name", "kind", "algorithm"), ALGORITHMS)
def test_bytes_are_those_of_the_blocks(name: str, kind: str, algorithm: Callable[..., list[Step]]) -> None:
    """Every transfer of a step carries the same number of blocks, and their bytes: cost and proof agree."""
    for group in groups(algorithm):
        nbytes = 1.0 if kind != "all_to_all" else 1.0 / group.size  # the parts are those of the vectors of all ranks
        for step in built(algorithm, kind, group, nbytes, group.size - 1):
            assert step.blocks is not None
            for repetition in (0, step.repeat - 1):
                for number in range(len(step.transfers)):
                    assert step.nbytes == pytest.approx(len(step.blocks(repetition, number)) / step.parts)


@pytest.mark.parametrize(("name", "kind", "algorithm"), ALGORITHMS)
def test_no_one_sends_to_itself_and_lanes_are_equal(name: str, kind: str, algorithm: Callable[..., list[Step]]) -> None:
    for group in groups(algorithm):
        for step in built(algorithm, kind, group, 1.0, 0):
            assert all(sender != receiver for sender, receiver in step.transfers)
            assert {p for pair in step.transfers for p in pair} <= set(range(group.size))
            assert len(step.transfers) % step.lanes == 0


@pytest.mark.parametrize(("name", "kind", "algorithm"), ALGORITHMS)
def test_one_rank_needs_no_steps(name: str, kind: str, algorithm: Callable[..., list[Step]]) -> None:
    assert built(algorithm, kind, Group(1), 1e6, 0) == []


def test_a_wrong_algorithm_is_detected() -> None:
    """The executor detects a ring with one round too few."""
    steps = [
        s
        for name, kind, algorithm in ALGORITHMS
        if (name, kind) == ("ring", "all_reduce")
        for s in algorithm(Group(4), 1.0)
    ]
    vectors = start("all_reduce", 4, 4, 0)
    execute(steps[:1], vectors)
    assert vectors[0] != [sum(map(contribution, range(4)))] * 4
