"""Every algorithm, executed on symbolic chunks: the data that each rank holds at the end, and the bytes moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import lcm

import pytest

from simulator import lookup
from simulator.network.step import Group, Step
from simulator.network.transport.tuner import ROOTED
from simulator.schedule import COLLECTIVES

Vector = list[int]
"""For each part a number whose byte r counts how often the contribution of rank r is in it; 0 is nothing."""

Nodes = tuple[tuple[int, ...], ...]


def contribution(rank: int) -> int:
    return 1 << 8 * rank


def algorithms() -> Iterator[tuple[str, str, Callable[..., list[Step]]]]:
    for name in lookup.names("simulator.network.collectives"):
        module = lookup.find("simulator.network.collectives", name)
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


def start(kind: str, size: int, parts: int, root: int) -> list[Vector]:
    """The data that each rank holds before: its own vector, its own block, or the root's vector at the root alone."""

    def holds(rank: int, part: int) -> bool:
        if kind in ("all_reduce", "reduce_scatter", "reduce"):
            return True
        if kind in ("broadcast", "scatter"):
            return rank == root
        return rank == part * size // parts

    return [[contribution(rank) if holds(rank, part) else 0 for part in range(parts)] for rank in range(size)]


def expected(kind: str, size: int, parts: int, root: int, rank: int) -> dict[int, int]:
    """The data that *rank* must hold after."""
    everyone = sum(map(contribution, range(size)))
    owner = [part * size // parts for part in range(parts)]
    mine = [part for part in range(parts) if owner[part] == rank]
    if kind == "all_reduce":
        return dict.fromkeys(range(parts), everyone)
    if kind == "reduce":
        return dict.fromkeys(range(parts), everyone) if rank == root else {}
    if kind == "reduce_scatter":
        return dict.fromkeys(mine, everyone)
    if kind == "broadcast":
        return dict.fromkeys(range(parts), contribution(root))
    if kind == "scatter":
        return dict.fromkeys(mine, contribution(root))
    if kind == "all_to_all":
        block = parts // size // size
        return {part: contribution(owner[part]) for part in range(parts) if part // block % size == rank}
    wants_all = kind == "all_gather" or rank == root
    return {part: contribution(owner[part]) for part in range(parts)} if wants_all else {}


def execute(steps: Iterable[Step], vectors: list[Vector]) -> None:
    """Execute *steps*.

    Rounds: all sends of a repetition read the state before it. Pipelined: transfers in order, chunk by chunk. A step
    that forwards sends what arrived in the repetition before.
    """
    for step in steps:
        arrived = vectors
        for repetition in range(step.repeat):
            if step.forwards:
                arriving = messages(step, repetition, range(len(step.transfers)), arrived)
                deliver(vectors, arriving)
                arrived = [[0] * len(vector) for vector in vectors]
                deliver(arrived, arriving)
            elif step.pipelined:
                for number in range(len(step.transfers)):
                    deliver(vectors, messages(step, repetition, [number], vectors))
            else:
                deliver(vectors, messages(step, repetition, range(len(step.transfers)), vectors))


def messages(
    step: Step, repetition: int, numbers: Iterable[int], vectors: list[Vector]
) -> list[tuple[int, int, int, bool]]:
    """(receiver, part, data sent, whether it is added) in the present state."""
    assert step.blocks is not None
    fine = len(vectors[0]) // step.parts
    found = []
    for number in numbers:
        sender, receiver = step.transfers[number]
        for block in step.blocks(repetition, number):
            for part in range(block * fine, (block + 1) * fine):
                assert vectors[sender][part], f"rank {sender} sends part {part}, of which it has nothing"
                found.append((receiver, part, vectors[sender][part], step.adds(number)))
    return found


def deliver(vectors: list[Vector], arriving: Iterable[tuple[int, int, int, bool]]) -> None:
    for receiver, part, sent, adds in arriving:
        vectors[receiver][part] = vectors[receiver][part] + sent if adds else sent


def built(algorithm: Callable[..., list[Step]], kind: str, group: Group, nbytes: float, root: int) -> list[Step]:
    return algorithm(group, nbytes, root) if kind in ROOTED else algorithm(group, nbytes)


@pytest.mark.parametrize(("name", "kind", "algorithm"), ALGORITHMS)
def test_every_rank_ends_with_the_right_data(name: str, kind: str, algorithm: Callable[..., list[Step]]) -> None:
    for group in GROUPS:
        for root in range(group.size if kind in ROOTED else 1):
            steps = built(algorithm, kind, group, 1.0, root)
            parts = lcm(group.size**2 if kind == "all_to_all" else group.size, *(step.parts for step in steps))
            vectors = start(kind, group.size, parts, root)
            execute(steps, vectors)
            for rank, vector in enumerate(vectors):
                for part, holding in expected(kind, group.size, parts, root, rank).items():
                    assert vector[part] == holding, f"{name} {kind} over {group}, root {root}: rank {rank}, part {part}"


@pytest.mark.parametrize(("name", "kind", "algorithm"), ALGORITHMS)
def test_bytes_are_those_of_the_blocks(name: str, kind: str, algorithm: Callable[..., list[Step]]) -> None:
    """Every transfer of a step carries the same number of blocks, and their bytes: cost and proof agree."""
    for group in GROUPS:
        nbytes = 1.0 if kind != "all_to_all" else 1.0 / group.size  # the parts are those of the vectors of all ranks
        for step in built(algorithm, kind, group, nbytes, group.size - 1):
            assert step.blocks is not None
            for repetition in (0, step.repeat - 1):
                for number in range(len(step.transfers)):
                    assert step.nbytes == pytest.approx(len(step.blocks(repetition, number)) / step.parts)


@pytest.mark.parametrize(("name", "kind", "algorithm"), ALGORITHMS)
def test_no_one_sends_to_itself_and_lanes_are_equal(name: str, kind: str, algorithm: Callable[..., list[Step]]) -> None:
    for group in GROUPS:
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
