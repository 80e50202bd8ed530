"""Rounds and bytes of the algorithms against the literature's closed forms."""

from __future__ import annotations

from collections import Counter
from math import ceil, log2

import numpy as np
import pytest

from clustersim.simulator.network.collectives import (
    binomial,
    direct,
    halving_doubling,
    hierarchical,
    ring,
    ring_unchunked,
    tree,
)
from clustersim.simulator.network.step import Group, Step

SIZES = range(2, 65)


def sent(steps: list[Step]) -> Counter[int]:
    """Bytes sent by each rank."""
    total: Counter[int] = Counter()
    for step in steps:
        for sender, _ in step.transfers:
            total[sender] += step.nbytes * step.repeat  # type: ignore[assignment]  # a Counter adds floats as well
    return total


def rounds(steps: list[Step]) -> int:
    return sum(step.rounds for step in steps)


def test_ring_all_reduce_is_two_p_less_one_rounds_of_a_pth() -> None:
    for size in SIZES:
        steps = ring.all_reduce(Group(size), 1.0)
        assert rounds(steps) == 2 * (size - 1)
        assert sent(steps) == pytest.approx(dict.fromkeys(range(size), 2 * (size - 1) / size))


def test_a_ring_without_chunks_is_p_less_one_rounds_of_everything() -> None:
    for size in SIZES:
        steps = ring_unchunked.all_reduce(Group(size), 1.0)
        assert rounds(steps) == size - 1
        assert sent(steps) == pytest.approx(dict.fromkeys(range(size), size - 1))


def test_halving_doubling_is_optimal_in_rounds_and_bytes_for_any_size() -> None:
    """Träff 2024, theorem 1: ceil(log2 p) rounds, p - 1 blocks each way."""
    for size in SIZES:
        for build in (halving_doubling.reduce_scatter, halving_doubling.all_gather):
            steps = build(Group(size), 1.0)
            assert rounds(steps) == ceil(log2(size))
            assert sent(steps) == pytest.approx(dict.fromkeys(range(size), (size - 1) / size))


def test_halving_exchanges_in_pairs_for_powers_of_two() -> None:
    first, second, third = halving_doubling.reduce_scatter(Group(8), 8.0)
    assert first.transfers[:4] == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert [step.nbytes for step in (first, second, third)] == [4, 2, 1]


def test_two_trees_load_no_rank_with_more_than_the_vector() -> None:
    """Sanders, Speck and Träff 2009: full bandwidth, depth logarithmic."""
    for size in SIZES:
        for root in (0, size // 2, size - 1):
            (down,) = tree.broadcast(Group(size), 1.0, root)
            received = Counter(receiver for _, receiver in down.transfers)
            assert max(sent([down]).values()) <= 1 + 1e-12
            assert received == {rank: 2 for rank in range(size) if rank != root}
            assert down.rounds <= ceil(log2(size))


def test_a_tree_over_servers_crosses_between_them_once_for_each() -> None:
    """As in NCCL: chains inside the servers, trees between the first ranks of the chains."""
    nodes = tuple(tuple(range(8 * i, 8 * i + 8)) for i in range(16))
    (down,) = tree.broadcast(Group(128, nodes, (tuple(range(128)),)), 1.0, 0)
    across = [pair for pair in down.transfers if pair[0] // 8 != pair[1] // 8]
    assert len(across) == 2 * 15
    assert down.rounds == 4 + 7


@pytest.mark.parametrize(("size", "root"), [(2, 0), (7, 3), (16, 15), (33, 8)])
def test_rooted_algorithms_pay_their_rounds(size: int, root: int) -> None:
    assert rounds(ring.broadcast(Group(size), 1.0, root)) == size - 1
    assert rounds(ring.reduce(Group(size), 1.0, root)) == size - 1
    assert rounds(binomial.broadcast(Group(size), 1.0, root)) == ceil(log2(size))
    assert rounds(binomial.reduce(Group(size), 1.0, root)) == ceil(log2(size))
    assert rounds(direct.broadcast(Group(size), 1.0, root)) == rounds(direct.gather(Group(size), 1.0, root)) == 1


@pytest.mark.parametrize(("servers", "each"), [(2, 4), (3, 5), (25, 4), (16, 8)])
def test_hierarchical_sends_between_servers_only_each_ones_share(servers: int, each: int) -> None:
    size = servers * each
    nodes = tuple(tuple(range(each * i, each * i + each)) for i in range(servers))
    steps = hierarchical.all_reduce(Group(size, nodes), 1.0)
    out = sum(s.nbytes * s.repeat for s in steps for a, b in s.transfers if a // each == 0 and b // each != 0)
    assert out == pytest.approx(2 * (servers - 1) / servers)
    assert rounds(steps) == 2 * (each - 1) + 2 * (servers - 1)


def test_channels_share_the_vector_but_not_the_latency() -> None:
    """c rings send the bytes of one ring in as many rounds. A chain of one lane delays no other."""
    forward, backward = tuple(range(6)), tuple(range(5, -1, -1))
    group = Group(6, rings=(forward, backward))
    assert sent(ring.all_reduce(group, 1.0)) == pytest.approx(sent(ring.all_reduce(Group(6), 1.0)))
    assert rounds(ring.all_reduce(group, 1.0)) == 10
    assert rounds(ring.broadcast(group, 1.0, 2)) == 5


def test_a_ring_pays_the_mean_hop_and_a_chain_the_sum() -> None:
    (turn,) = ring.all_gather(Group(4), 1.0)
    assert turn.latency(np.array([1.0, 1.0, 1.0, 5.0])) == 3 * 2.0
    (chain,) = ring.broadcast(Group(4), 1.0, 0)
    assert chain.latency(np.array([1.0, 2.0, 4.0])) == 7.0
    (burst,) = direct.gather(Group(4), 1.0, 0)
    assert burst.latency(np.array([1.0, 2.0, 4.0])) == 4.0
