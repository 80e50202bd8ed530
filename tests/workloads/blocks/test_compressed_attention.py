"""Compressed attention, hyper-connections and Kimi's delta attention: counts and FLOPs in closed form."""

import pytest

from clustersim import HiddenStates
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.architectures.specification import specification
from clustersim.workloads.architectures.transformer import Transformer
from clustersim.workloads.blocks.compressed_attention import CompressedAttention
from clustersim.workloads.blocks.gated_delta_net import DeltaRule, GatedDeltaNet
from clustersim.workloads.blocks.kimi_delta_attention import KimiDeltaAttention
from clustersim.workloads.operators.attentions.indexer import Selection
from clustersim.workloads.operators.sharded import Cut

LONG = HiddenStates(65536, 4096, "bf16")


def keys(block: CompressedAttention) -> int:
    kernels = (k for one in block.operators(LONG) for k in one.forward(1) if k.attention)
    shape = next(kernels).shape
    assert shape is not None
    return shape[2]


def test_a_position_attends_to_its_window_and_to_compressed_ones() -> None:
    """128 of the window; of 65,536 / 128 compressed positions half on average, or 512 chosen of 16,384."""
    assert keys(CompressedAttention()) == 128
    assert keys(CompressedAttention(compress_ratio=128)) == 128 + 256
    assert keys(CompressedAttention(compress_ratio=4, index_topk=512)) == pytest.approx(128 + 512, rel=0.02)


def test_the_indexer_scores_compressed_positions() -> None:
    operators = CompressedAttention(compress_ratio=4, index_topk=512).operators(LONG)
    scores = next(one for one in operators if isinstance(one, Selection)).forward(1)[0]
    assert scores.flops == 2 * 65536 * (65536 // 4) * 64 * 128


@pytest.mark.parametrize("block", [CompressedAttention(), KimiDeltaAttention()])
def test_tensor_parallel_ranks_share_heads(block: CompressedAttention | KimiDeltaAttention) -> None:
    whole = block.operators(LONG)
    half = block.operators(HiddenStates(65536, 4096, "bf16", cut=Cut("tp", 2)))
    weights = [max(t.count for one in part for t in one.tensors) for part in (whole, half)]
    work = [sum(k.flops for one in part for k in one.forward(1)) for part in (whole, half)]
    assert weights[0] == 2 * weights[1]
    assert work[1] < 0.6 * work[0]


def test_streams_are_passed_on_and_cost_their_product() -> None:
    """A layer with four streams passes on four times as much; its two blocks have a product of 24 weights each."""
    base = specification("llama3_8b").model_copy(update={"num_layers": 2})
    one, four = (base.model_copy(update={"residual_streams": n}).build("bf16") for n in (1, 4))
    assert isinstance(one, Transformer) and isinstance(four, Transformer)
    assert four.layers[1].output_bytes(1) == 4 * one.layers[1].output_bytes(1)
    more = four.layers[1].parameters - one.layers[1].parameters
    assert more == 2 * (24 * 4 * 4096 + 24 + 3)
    assert four.layers[-1].parameters - one.layers[-1].parameters == 4 * 4 * 4096 + 4 + 1


def test_the_scan_of_kimi_is_that_of_a_gated_delta_net() -> None:
    sizes = {"num_key_heads": 32, "num_value_heads": 32}
    rules = [
        one
        for block in (KimiDeltaAttention(), GatedDeltaNet(**sizes))
        for one in block.operators(LONG)
        if isinstance(one, DeltaRule)
    ]
    assert rules[0].forward(1) == rules[1].forward(1)
    assert sum(t.count for t in rules[0].tensors) == 32 * 128 + 32


def test_faults() -> None:
    with pytest.raises(Fault, match="does not divide num_heads"):
        CompressedAttention(o_groups=7).counts(4096)
    with pytest.raises(Fault, match="give compress_ratio too"):
        CompressedAttention(index_topk=7).counts(4096)
