"""Attention over a sequence that several ranks share: scores by brute force, bytes, and what is kept."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.hardware.kernel import Kernel
from clustersim.workloads.architectures.specification import specification
from clustersim.workloads.architectures.transformer import Transformer
from clustersim.workloads.operators.attentions.context_parallel import (
    ContextCut,
    GatheredAttention,
    RingAttention,
    cut_over,
    positions_for_heads,
)
from clustersim.workloads.operators.attentions.core_attention import CoreAttention, FlashAttention
from clustersim.workloads.operators.by_coordinate import NO_KERNEL, KernelByCoordinate, by_coordinate
from clustersim.workloads.operators.operator import SHIFT, Exchange, Operator
from clustersim.workloads.operators.sharded import ShardedOperator

HEADS, GROUPS, SIZE, WIDTH = 8, 4, 16, 2
METHODS = st.sampled_from(["ring", "all_gather"])
CHUNKS = st.sampled_from([64, 128, 192])


def attention(length: int, *, causal: bool = True, window: int = 0) -> FlashAttention:
    return FlashAttention(length, HEADS, GROUPS, SIZE, drop=False, precision="bf16", causal=causal, window=window)


def cut(ranks: int, method: str, *, zigzag: bool = True, chunk: int = 64, **options: object) -> FlashAttention:
    return cut_over(attention(2 * chunk, **options), ContextCut("cp", ranks, method, zigzag))  # type: ignore[arg-type]


def of_rank(kernels: tuple[Kernel, ...], rank: int) -> list[Kernel]:
    own = [kernel.each[rank] if isinstance(kernel, KernelByCoordinate) else kernel for kernel in kernels]
    return [kernel for kernel in own if kernel != NO_KERNEL]


def positions(rank: int, ranks: int, chunk: int, zigzag: bool) -> list[int]:
    """The positions of *rank*, two chunks: r and 2c - 1 - r, or two neighbours."""
    chunks = (rank, 2 * ranks - 1 - rank) if zigzag else (2 * rank, 2 * rank + 1)
    return [position for number in chunks for position in range(number * chunk, (number + 1) * chunk)]


@given(ranks=st.integers(2, 5), method=METHODS, zigzag=st.booleans(), causal=st.booleans(), chunk=CHUNKS)
def test_each_rank_computes_the_scores_of_its_own_queries(
    ranks: int, method: str, zigzag: bool, causal: bool, chunk: int
) -> None:
    """By brute force: pairs of a query and a key not after it, half of a score on the diagonal."""
    whole = 2 * ranks * chunk
    kernels = cut(ranks, method, zigzag=zigzag, causal=causal, chunk=chunk).forward(1)
    for rank in range(ranks):
        flops = sum(kernel.flops for kernel in of_rank(kernels, rank))
        own = positions(rank, ranks, chunk, zigzag)
        scores = sum(query + 0.5 for query in own) if causal else len(own) * whole
        # two products forward; model FLOPs count the scores under the mask too
        assert flops == pytest.approx(4 * HEADS * SIZE * scores * (2 if causal else 1))


@given(ranks=st.integers(2, 8), method=METHODS, zigzag=st.booleans(), causal=st.booleans())
def test_all_ranks_together_count_the_flops_of_the_whole(ranks: int, method: str, zigzag: bool, causal: bool) -> None:
    one, whole = cut(ranks, method, zigzag=zigzag, causal=causal), attention(128 * ranks, causal=causal)
    for phase in ("forward", "backward_input"):
        mine, theirs = (sum(kernel.flops for kernel in getattr(op, phase)(3)) for op in (one, whole))
        assert ranks * mine == pytest.approx(theirs)


@pytest.mark.parametrize("method", ["ring", "all_gather"])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_a_zigzag_layout_is_even_and_a_contiguous_one_is_not(method: str, ranks: int) -> None:
    """The slowest rank of a contiguous causal layout computes 2 - 1/c times the mean."""
    for zigzag, most in ((True, 1.0), (False, 2 - 1 / ranks)):
        kernels = cut(ranks, method, zigzag=zigzag).forward(1)
        work = [sum(kernel.flops for kernel in of_rank(kernels, rank)) for rank in range(ranks)]
        assert max(work) / (sum(work) / ranks) == pytest.approx(most)
        assert work[-1] == max(work)


def test_blocks_of_a_ring() -> None:
    """Forward, keys and values make one hop less than there are blocks; backward, their gradients follow them."""
    ring = cut(4, "ring")
    block = 2 * 3 * 128 * GROUPS * SIZE * WIDTH
    hops = {
        phase: [exchange for segment in ring.segments(phase, 3) for exchange in segment.exchanges] for phase in "FI"
    }
    assert [exchange.nbytes / block for exchange in hops["F"]] == [1, 1, 1, 0]
    assert [exchange.nbytes / block for exchange in hops["I"]] == [1, 2, 2, 1]
    assert {(exchange.kind, exchange.distance) for exchange in hops["F"]} == {(SHIFT, 1)}
    assert {(exchange.kind, exchange.distance) for exchange in hops["I"]} == {(SHIFT, -1)}
    assert all(exchange in segment.within for segment in ring.segments("F", 3) for exchange in segment.exchanges)
    # the first block forward and the last one backward are the rank's own, with the diagonal
    forward, backward = (ring.segments(phase, 1) for phase in "FI")
    assert [len(segment.kernels) for segment in (*forward, *backward)] == [1, 2, 2, 2, 1, 2, 2, 2]
    own = [segment.kernels[0].shape for segment in (forward[0], backward[-1])]
    assert own == [(2 * HEADS, 128, 64 + 32, SIZE), (5 * HEADS, 128, 64 + 32, SIZE)]


def test_sums_of_blocks() -> None:
    """One kernel reads a result and adds it in fp32; torch's operators move 38 bytes for each element of 16 bits."""
    fused = cut(2, "ring", zigzag=False, causal=False)
    apart = cut_over(attention(128, causal=False), ContextCut("cp", 2, "ring", zigzag=False), fused_sum=False)
    elements = 128 * HEADS * SIZE
    assert [op.forward(1)[-1].nbytes / elements for op in (fused, apart)] == [10, 38]
    assert [op.forward(1)[-1].launches for op in (fused, apart)] == [1, 4]
    gradients = elements + 2 * 128 * GROUPS * SIZE
    assert [op.backward_input(1)[-1].nbytes / gradients for op in (fused, apart)] == [10, 10]


def test_gathered_keys_and_values() -> None:
    gathered = cut(4, "all_gather")
    (forward,), (backward,) = gathered.segments("F", 3), gathered.segments("I", 3)
    nbytes = 4 * 2 * 3 * 128 * GROUPS * SIZE * WIDTH
    assert forward.before == backward.before == (Exchange("all_gather", nbytes, "cp"),)
    assert (forward.after, backward.after) == ((), (Exchange("reduce_scatter", nbytes, "cp"),))
    assert (gathered.transient_bytes("F", 3), gathered.transient_bytes("I", 3)) == (0, nbytes)
    # a kernel for each chunk of queries, with the keys before it
    assert [kernel.shape for kernel in of_rank(forward.kernels, 1)] == [
        (2 * 3 * HEADS, 64, 96 + 32, SIZE),
        (2 * 3 * HEADS, 64, 6 * 64 + 32 + 32, SIZE),
    ]


@given(ranks=st.integers(2, 4), zigzag=st.booleans(), window=st.integers(1, 600))
def test_a_window_over_gathered_keys(ranks: int, zigzag: bool, window: int) -> None:
    kernels = cut(ranks, "all_gather", zigzag=zigzag, window=window).forward(1)
    whole = 128 * ranks
    for rank in range(ranks):
        scores = sum(min(query + 0.5, window) for query in positions(rank, ranks, 64, zigzag))
        flops = sum(kernel.flops for kernel in of_rank(kernels, rank))
        # the mean over a row is between both of its ends
        assert flops == pytest.approx(8 * HEADS * SIZE * scores, abs=8 * HEADS * SIZE)
        assert all(kernel.shape and kernel.shape[2] <= whole for kernel in kernels)


def test_positions_for_heads() -> None:
    """An all-to-all each for queries, keys, values and output; backward their gradients go the other way."""
    inner = CoreAttention(512, HEADS // 4, GROUPS // 4, SIZE, precision="bf16")
    packed, core, unpacked = positions_for_heads(
        (inner,), ContextCut("cp", 4, "ulysses"), (128, HEADS, GROUPS, SIZE), "bf16"
    )
    queries, keys = (2 * 128 * heads * SIZE * WIDTH for heads in (HEADS, GROUPS))
    (forward,), (backward,) = core.segments("F", 2), core.segments("I", 2)
    sent = {name: [(e.kind, e.nbytes) for e in exchanges] for name, exchanges in {
        "into": forward.before, "out": forward.after, "gradient in": backward.before, "gradients out": backward.after,
    }.items()}  # fmt: skip
    assert (
        sent["into"] == sent["gradients out"] == [("all_to_all", queries), ("all_to_all", keys), ("all_to_all", keys)]
    )
    assert sent["out"] == sent["gradient in"] == [("all_to_all", queries)]
    assert core.forward(2) == inner.forward(2)
    # each tensor is read and written once more
    assert packed.forward(2)[0].nbytes == 2 * (queries + 2 * keys)
    assert unpacked.backward_input(2)[0].nbytes == 2 * queries


def test_attention_around_several_operators_is_exchanged_once() -> None:
    parts = tuple(CoreAttention(512, 2, 1, SIZE, precision="bf16") for _ in range(3))
    made = positions_for_heads(parts, ContextCut("cp", 4, "ulysses"), (128, HEADS, GROUPS, SIZE), "bf16")[1:-1]
    exchanged = [[len(operator.segments(phase, 1)[0].exchanges) for operator in made] for phase in "FI"]
    assert exchanged == [[3, 0, 1], [3, 0, 1]]
    assert [len(operator.segments("F", 1)[0].before) for operator in made] == [3, 0, 0]


@pytest.mark.parametrize("method", ["ring", "all_gather"])
def test_what_a_rank_keeps(method: str) -> None:
    """Its share of queries, keys, values and statistics, as flash attention over the whole keeps them."""
    whole = attention(1024)
    one = cut_over(attention(256), ContextCut("cp", 4, method))
    assert 4 * one.kept_bytes(3) == whole.kept_bytes(3)
    assert 4 * one.recomputable_bytes(3) == whole.recomputable_bytes(3)
    assert isinstance(one, RingAttention if method == "ring" else GatheredAttention)
    assert cut_over(whole, ContextCut()) is whole


@pytest.mark.parametrize("method", ["ring", "all_gather", "ulysses"])
def test_latent_attention_sees_the_whole_sequence(method: str) -> None:
    """Ranks together have the scores of one; keys of 192 and values of 128 features are exchanged (DeepSeek-V2)."""
    whole = specification("deepseek_v2_lite").build("bf16")
    assert isinstance(whole, Transformer)
    part = whole.reshaped(context=ContextCut("cp", 4, method, zigzag=False), seq_length=whole.shape.seq_length // 4)

    def cores(model: Transformer) -> list[Operator]:
        def bare(operator: Operator) -> Operator:
            return bare(operator.share) if isinstance(operator, ShardedOperator) else operator

        return [one for one in model.layers[1].operators if isinstance(bare(one), FlashAttention)]  # type: ignore[attr-defined]

    (alone,), (shared,) = cores(whole), cores(part)
    kernels = [kernel for s in shared.segments("F", 1) for kernel in s.kernels]
    ranks = range(4) if method != "ulysses" else [0] * 4
    flops = sum(kernel.flops for rank in ranks for kernel in of_rank(tuple(kernels), rank))
    assert flops == pytest.approx(alone.forward(1)[0].flops, rel=1e-3)
    sent = sum(one.nbytes for s in shared.segments("F", 1) for one in s.exchanges)
    length, heads = part.shape.seq_length, part.shape.heads
    keys_and_values = length * heads * (192 + 128) * WIDTH
    # ring: to the next rank three times; Ulysses: queries, keys, values and the output
    expected = {"ring": 3, "all_gather": 4, "ulysses": 2}[method]
    assert sent == expected * keys_and_values


def test_kernels_by_coordinate() -> None:
    small, large = (Kernel(flops, 2 * flops, (1, 4, int(flops), 1)) for flops in (8.0, 24.0))
    mean = by_coordinate("cp", [NO_KERNEL, small, large])
    assert isinstance(mean, KernelByCoordinate)
    assert (mean.flops, mean.nbytes, mean.over) == (32 / 3, 64 / 3, "cp")
    # a bound from the mean is none too large
    assert mean.shape is not None
    assert prod(mean.shape) <= (4 * 8 + 4 * 24) / 3
    assert by_coordinate("cp", [small, small]) is small
    assert all(a.launches == b.launches for a, b in pairwise([small, large, mean]))
