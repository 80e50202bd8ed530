"""Blocks of attention and of feed-forward networks equal those of the model itself where sizes are equal."""

from typing import Any

import pytest

from clustersim import HiddenStates
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.architectures.transformer_keys import TransformerSpecification
from clustersim.workloads.blocks.feed_forward import FeedForward
from clustersim.workloads.blocks.grouped_attention import GroupedAttention
from clustersim.workloads.operators.attentions.context_parallel import ContextCut
from clustersim.workloads.operators.model import Layer
from clustersim.workloads.operators.sharded import Cut

SIZES: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "ffn_hidden_size": 2816,
    "seq_length": 2048,
    "vocab_size": 1000,
    "activation": "swiglu",
    "normalization": "rmsnorm",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "attention": "flash",
    "dropout": 0,
}
BLOCKS = {
    "own": {"kind": "grouped_attention", "num_heads": 16, "num_key_value_heads": 4, "head_dim": 64},
    "network": {"kind": "feed_forward", "width": 2816},
}


def layer(**more: Any) -> Layer:
    return TransformerSpecification.model_validate({**SIZES, **more}).build("bf16").layers[1]


def costs(one: Layer) -> tuple[float, ...]:
    kernels = (*one.forward(2), *one.backward(2))
    return sum(k.flops for k in kernels), sum(k.nbytes for k in kernels), one.activation_bytes(2), one.parameters


@pytest.mark.parametrize("keys", [{}, {"qk_norm": True}, {"window": 512}, {"partial_rotary_factor": 0.5}])
def test_equal_sizes_cost_the_same(keys: dict[str, Any]) -> None:
    blocks = {**BLOCKS, "own": {**BLOCKS["own"], **keys}}
    same: dict[str, Any] = {"qk_norm": "per_head"} if "qk_norm" in keys else dict(keys)
    if "window" in same:
        same = {"attention_window": same["window"]}
    assert costs(layer(layers=[["own", "network"]], blocks=blocks)) == costs(layer(**same))


def test_tensor_parallel_ranks_share_heads() -> None:
    hidden = HiddenStates(2048, 1024, "bf16")
    half = HiddenStates(2048, 1024, "bf16", cut=Cut("tp", 2))
    for block in (GroupedAttention(num_heads=16, num_key_value_heads=4, sinks=True, output_gate="head"), FeedForward()):
        work = [sum(k.flops for one in block.operators(h) for k in one.forward(1)) for h in (hidden, half)]
        weights = [sum(t.count for one in block.operators(h) for t in one.tensors) for h in (hidden, half)]
        assert work[0] == 2 * work[1] and weights[0] == 2 * weights[1]


def test_partial_rotary_moves_its_share() -> None:
    def rotated(share: float) -> float:
        kernels = layer(partial_rotary_factor=share).forward(1)
        return sum(k.nbytes for k in kernels if k.operation and k.operation.name == "rotary embedding")

    assert rotated(0.25) == rotated(1.0) / 4 > 0


def test_a_chosen_block_counts_its_keys_only() -> None:
    """16 blocks of 128 of 32,768 positions: 2,048 keys, of which the first rows have fewer."""
    block = GroupedAttention(num_heads=64, num_key_value_heads=4, index_block=128)
    operators = block.operators(HiddenStates(32768, 6144, "bf16"))
    core = next(k for one in operators for k in one.forward(1) if k.attention)
    assert core.shape is not None and core.shape[2] == 1984
    assert core.flops == 2 * 2 * 32768 * 64 * (2 * 1984) * 128


def test_faults() -> None:
    with pytest.raises(Fault, match=r"5 does not divide num_heads = 32"):
        GroupedAttention(num_key_value_heads=5).counts(1024)
    with pytest.raises(Fault, match=r"is not modelled with a window"):
        GroupedAttention(index_block=64, window=4).counts(1024)
    ring = ContextCut("cp", 2, "ring")
    assert "take all_gather" in GroupedAttention(window=64).context_fault(HiddenStates(64, 64), ring)
    assert GroupedAttention().context_fault(HiddenStates(64, 64), ring) == ""
    with pytest.raises((SimulatorError, ValueError), match="grouped_atention"):
        layer(layers=["own"], blocks={"own": {"kind": "grouped_atention"}})
