"""Attentions that leave out scores: layouts by brute force, closed forms, laws of growth, and DeepSpeed's claims."""

from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.operators.attentions.core_attention import CoreAttention, Sizes
from clustersim.workloads.operators.attentions.cross_attention import LowRank, MemoryAttention
from clustersim.workloads.operators.attentions.sparse_attention import BlockSparse, Hashed
from clustersim.workloads.parallelism.tensor import sharded

SIZES = Sizes(1024, 12, 12, 64, precision="fp16")


def layout(pattern, length, masked):
    """All blocks that are computed, pair by pair; random ones are not among them."""
    count, window = -(-length // pattern.block), -(-pattern.window // pattern.block)
    last, first = -(-pattern.summary // pattern.block), -(-pattern.fixed // pattern.block)
    found = set()
    for i in range(count):
        for j in range(i + 1 if masked else count):
            if pattern.summary:
                group = j // window
                end = min((group + 1) * window, count)
                local = group == i // window
                seen = local or j >= end - min(last, window)
            else:
                seen = abs(i - j) <= window // 2 or j < first
            if seen or i < first:
                found.add((i, j))
    return found


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3), st.integers(0, 4), st.booleans(), st.booleans())
def test_blocks_are_those_of_the_layout(count, window, summary, fixed, masked, whole):
    length = 16 * count - (0 if whole else 5)
    pattern = BlockSparse(16, 16 * window, 16 * min(summary, window), 0 if summary else 16 * fixed)
    if summary and masked and count % window:
        length = 16 * (count - count % window + window)  # the last window is whole
    assert pattern.scores(length, masked=masked) == 256 * len(layout(pattern, length, masked))


def test_the_law_of_sparse_transformers():
    """Child et al. 2019: n sqrt(n). Sixteen times the length takes 64 times the scores, not 256 times."""
    pattern = BlockSparse(block=16, summary=16)
    sizes = {n: pattern.scores(n, masked=False) for n in (2**14, 2**18)}
    assert sizes[2**18] / sizes[2**14] == pytest.approx(64, rel=0.02)
    assert sizes[2**18] == pytest.approx(2 * sqrt(16) * (2**18) ** 1.5, rel=0.02)
    dense = BlockSparse(block=16, density=1.0)
    assert dense.scores(2**14, masked=False) == 2**28


def flops(kernels):
    return sum(kernel.flops for kernel in kernels)


def test_flops_and_bytes_of_blocks_have_a_closed_form():
    pattern = BlockSparse(block=64, window=192)
    (made,) = pattern.operators(SIZES)
    scores = 12 * (16 * 3 - 2) * 64**2
    assert flops(made.forward(2)) == 2 * 2 * 2 * scores * 64
    assert flops(made.backward_input(2)) == 2 * flops(made.forward(2))
    assert made.kept_bytes(2) == 2 * (3 * 1024 * 768 + scores) * 2
    assert made.recomputable_bytes(2) == 2 * scores * 2
    softmax = made.forward(1)[1]
    assert softmax.nbytes == 2 * 2 * scores


def test_all_blocks_are_dense_attention():
    """Product by product the FLOPs of the dense operator, and its kept bytes without dropout."""
    (made,) = BlockSparse(density=1.0).operators(SIZES)
    dense = CoreAttention(1024, 12, 12, 64, drop=False, precision="fp16")
    assert flops(made.forward(1)) == flops(dense.forward(1))
    assert flops(made.backward_input(1)) == flops(dense.backward_input(1))
    assert made.kept_bytes(1) == dense.kept_bytes(1)
    assert [kernel.nbytes for kernel in made.forward(1)] == [kernel.nbytes for kernel in dense.forward(1)]


def test_low_rank_attention_has_a_closed_form():
    """Wang et al. 2020: two projections of 2 n k h FLOPs and two products of 2 n k h, all linear in n."""
    project, core = LowRank(128).operators(SIZES)
    n, k, h = 1024, 128, 768
    assert flops(project.forward(1)) == 2 * 2 * n * k * h
    assert flops(core.forward(1)) == 2 * 2 * n * k * h
    assert flops((*project.backward_input(3), *project.backward_weights(3))) == 2 * flops(project.forward(3))
    assert [tensor.count for tensor in project.tensors] == [n * k] * 2
    kept = project.kept_bytes(1) + core.kept_bytes(1)
    assert kept == 2 * (2 * n * h + n * h + 2 * k * h + 12 * n * k)
    longer = LowRank(128).operators(replace(SIZES, length=4096))
    assert sum(flops(one.forward(1)) for one in longer) == 4 * (flops(project.forward(1)) + flops(core.forward(1)))


def test_a_memory_has_a_closed_form():
    """Lee et al. 2019: 2 n m scores a head, forward and backward; queries of the memory are parameters."""
    read, use = MemoryAttention(32).operators(SIZES)
    n, m, h = 1024, 32, 768
    assert flops((*read.forward(1), *use.forward(1))) == 2 * (2 * 2 * n * m * h)
    assert flops((*read.backward_input(1), *use.backward_input(1))) == 2 * 2 * (2 * 2 * n * m * h)
    assert [tensor.count for tensor in (*read.tensors, *use.tensors)] == [m * h]
    assert read.kept_bytes(1) + use.kept_bytes(1) == 2 * (2 * n * h + n * h + m * h + 2 * 12 * n * m)


def test_hashed_attention_has_a_closed_form():
    """Kitaev et al. 2020: 2 c n scores a head and round, and rotations to n / c buckets."""
    (made,) = Hashed(rounds=2, chunk=64).operators(SIZES)
    n, c, h, rounds = 1024, 64, 768, 2
    rotations = 2 * 2 * n * h * rounds * (n // c) // 2
    scores = 2 * 2 * n * 2 * c * h * rounds
    assert flops(made.forward(1)) == rotations + scores
    assert flops(made.backward_input(1)) == 2 * scores
    rows = n * 12 * rounds
    assert made.kept_bytes(1) == 2 * (4 * n * h * rounds + rows * 2 * c) + rows * (2 * 8 + 4)
    assert made.kept_bytes(1) - made.recomputable_bytes(1) == 2 * 3 * n * h


KINDS = {
    "sparse": {"kind": "sparse", "window": 256, "global": 64},
    "low_rank": {"kind": "low_rank"},
    "lsh": {"kind": "lsh", "rounds": 2},
    "memory": {"kind": "memory"},
}


def scenario(attention, length=4096, size="bert_base", **changes):
    training = {"global_batch_size": 1, "precision": "fp16", **changes.pop("training", {})}
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "zhores", "nodes": 1, "node": {"accelerators": 1, "accelerator": "v100_32gb"}},
            "model": {"preset": size, "seq_length": length, "attention": attention},
            "training": training,
            **changes,
        }
    )


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_grows_slower_than_the_square(kind):
    """Forward and backward FLOPs of the core, over four times the length."""
    few, many = (scenario(KINDS[kind], n).model for n in (4096, 16384))
    none = [2 * replace_attention(one) for one in (few, many)]
    core = [one.flops(1) - rest for one, rest in zip((few, many), none, strict=True)]
    assert core[1] / core[0] < 9


def replace_attention(made):
    """Half of the FLOPs of a model without its core attention."""
    whole = made.reshaped(attention=replace(made.shape.attention, kind="unfused"))
    layers = made.shape.num_layers
    return (whole.flops(1) - layers * 3 * 4 * made.shape.seq_length**2 * made.shape.hidden_size) / 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_each_kind_runs_with_recomputation_and_tensor_parallelism(kind, recompute):
    made = scenario(KINDS[kind], training={"recompute": recompute})
    part = sharded(made.model, 4, sequence_parallel=True)
    once = sum(kernel.flops / kernel.copies for kernel in part.layers[1].forward(1))
    extra = sum(t.count for t in part.layers[1].tensors) * 4 - sum(t.count for t in made.model.layers[1].tensors)
    assert extra > 0
    if kind != "low_rank":
        assert once * 4 == pytest.approx(sum(kernel.flops for kernel in made.model.layers[1].forward(1)), rel=1e-3)
    assert made.run().timeline.step_time > 0


def test_mistakes_are_named():
    for attention, words in (
        ({"kind": "spare"}, "sparse, low_rank, lsh, memory, linear or performer"),
        ({"kind": "sparse"}, "either a window or a density"),
        ({"kind": "sparse", "density": 0.5, "random": 3}, "belongs to a window"),
        ({"kind": "sparse", "window": "sqrt"}, "sqrt needs a summary"),
    ):
        with pytest.raises(ScenarioError, match=words):
            scenario(attention)
    with pytest.raises(ScenarioError, match="cannot hide later"):
        scenario({"kind": "memory"}, size="gpt2")
    with pytest.raises(ScenarioError, match=r"rank: 1024 rows of keys are more than the 512 positions"):
        scenario({"kind": "low_rank", "rank": 1024}, 512)


SLIDING = {"kind": "sparse", "block": 16, "window": 48, "global": 16}
"""DeepSpeed's BSLongformer: blocks of 16, a window of three blocks, and one global block."""


DEEPSPEED = {"preset": "ddp", "fp32_scores": [], "fp32_residual": False, "fp32_gradients": [], "accumulation": "fused"}
"""torch's operators with a model that the engine casts to fp16, without autocast (deepspeed/runtime/engine.py,
_configure_distributed_model)."""


def under_deepspeed(attention, length, size, recompute):
    return scenario(attention, length, size, training={"recompute": recompute}, software=DEEPSPEED).run()


def fits(*arguments):
    return under_deepspeed(*arguments).fits


@pytest.mark.parametrize(("size", "dense", "longer"), [("bert_base", 5120, 11), ("bert_large", 3072, 15)])
def test_deepspeed_claims_sequences_10_times_longer(size, dense, longer):
    """DeepSpeed, "Sparse Attention" (8 September 2020): 10 times for BERT base and 16 times for BERT large.

    One sample on a V100 of 32 GB, dense without checkpoints against sparse with them. Here it is 11 and 15 times.
    """
    assert fits("unfused", dense, size, "none")
    assert not fits("unfused", dense + 1024, size, "none")
    assert fits(SLIDING, longer * dense, size, "full")
    assert not fits("unfused", longer * dense, size, "full")
    assert not fits(SLIDING, (longer + 1) * dense, size, "full")


TOO_FAST = pytest.mark.xfail(strict=True, reason="6.6 times at 8,192 tokens; the page does not say its longest length")


@pytest.mark.parametrize(("size", "claimed"), [("bert_base", 6.3), pytest.param("bert_large", 5.3, marks=TOO_FAST)])
def test_deepspeed_claims_to_be_up_to_6_times_faster(size, claimed):
    """The same page: up to 6.3 and 5.3 times, growing with the length; it gives neither pattern nor longest length."""
    ratios = []
    for length in (1024, 2048, 4096, 8192):
        times = [
            under_deepspeed(attention, length, size, "full").timeline.step_time for attention in ("unfused", SLIDING)
        ]
        ratios.append(times[0] / times[1])
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(claimed, rel=0.15)


def test_the_parameters_and_names():
    made = scenario(SLIDING)
    assert str(made.model.shape.attention.kind) == "sparse"
    assert made.model.parameters == model("bert_base").reshaped(seq_length=4096).parameters
