"""Mamba and gated delta net: parameters as published, FLOPs in closed form, and how ranks share them."""

from dataclasses import replace

import pytest

from clustersim import HiddenStates, model
from clustersim.workloads.architectures.specification import specification
from clustersim.workloads.blocks.attention_beside_mamba2 import AttentionBesideMamba2
from clustersim.workloads.blocks.gated_delta_net import DeltaRule, GatedDeltaNet
from clustersim.workloads.blocks.mamba import Mamba, SelectiveScan
from clustersim.workloads.blocks.mamba2 import Mamba2
from clustersim.workloads.blocks.short_convolution import ShortConvolution
from clustersim.workloads.operators.attentions.context_parallel import ContextCut
from clustersim.workloads.operators.sharded import Cut

HIDDEN = HiddenStates(4096, 2048, "bf16")
BLOCKS = {
    "mamba": Mamba(inner_norms=True),
    "gated_delta_net": GatedDeltaNet(),
    "mamba2": Mamba2(),
    "short_convolution": ShortConvolution(bias=True),
    "attention_beside_mamba2": AttentionBesideMamba2(),
}


def test_parameters_of_jamba_are_the_published_ones() -> None:
    """ai21labs/Jamba-v0.1: 51,570,323,328; 12 billion of them for each token (arXiv:2403.19887)."""
    made = model("jamba_52b")
    small = 256 + 2 * 16
    mamba = 4096 * 16384 + 5 * 8192 + 8192 * small + 257 * 8192 + 17 * 8192 + 8192 * 4096 + small
    attention, mlp = 2 * 4096 * (4096 + 1024), 3 * 4096 * 14336
    layers = 28 * mamba + 4 * attention + 16 * mlp + 16 * (16 * mlp + 16 * 4096) + 64 * 4096
    assert made.parameters == layers + 2 * 65536 * 4096 + 4096 == 51_570_323_328
    assert made.active_parameters == pytest.approx(12e9, rel=0.01)


def test_parameters_of_qwen3_next_are_the_published_ones() -> None:
    """Qwen/Qwen3-Next-80B-A3B-Instruct: its files have 81,324,862,720, of which the module of MTP has 1,650,471,424."""
    delta = 2048 * (12288 + 64) + 4 * 8192 + 2 * 32 + 128 + 4096 * 2048
    attention = 2048 * (2 * 4096 + 2 * 512) + 4096 * 2048 + 2 * 256
    experts = 2048 * 512 + 513 * 3 * 2048 * 512 + 2048 + 2 * 2048
    counted = 36 * delta + 12 * attention + 48 * experts + 2 * 151936 * 2048 + 2048
    assert model("qwen3_next_80b").parameters == counted == 79_674_391_296
    with_mtp = specification("qwen3_next_80b").model_copy(update={"num_nextn_predict_layers": 1}).build()
    assert with_mtp.parameters == 81_324_862_720


@pytest.mark.parametrize("name", BLOCKS)
def test_tensor_parallelism_halves_what_is_cut(name: str) -> None:
    """All weights are cut but for norms over features that every rank has."""
    block = BLOCKS[name]
    whole, half = (block.operators(replace(HIDDEN, cut=cut)) for cut in (Cut(), Cut("tp", 2)))
    matrices = [sum(t.count for one in part for t in one.tensors if t.rows) for part in (whole, half)]
    assert matrices[0] == 2 * matrices[1]
    work = [sum(k.flops for one in part for k in one.forward(1)) for part in (whole, half)]
    assert work[0] == 2 * work[1]
    scans = [one for part in (whole, half) for one in part if isinstance(one, SelectiveScan | DeltaRule)]
    for one, other in zip(scans[::2], scans[1::2], strict=True):
        assert one.forward(1) != other.forward(1)


def test_mamba_exchanges_dt_b_and_c_too() -> None:
    """Dao and Gu 2024, section 8.1: Mamba has an all-reduce more than Mamba-2 in each pass."""
    sent = {
        name: [
            exchange.nbytes
            for one in block.operators(replace(HIDDEN, cut=Cut("tp", 2)))
            for segment in one.segments("F", 1)
            for exchange in segment.exchanges
        ]
        for name, block in BLOCKS.items()
    }
    whole = 4096 * 2048 * 2
    assert sent["mamba2"] == sent["gated_delta_net"] == sent["short_convolution"] == [whole]
    assert sent["attention_beside_mamba2"] == [whole, whole]
    assert sent["mamba"] == [4096 * (128 + 2 * 16) * 2, whole]


def test_flops_of_the_delta_rule() -> None:
    """Q K^T, K K^T and w; u and the output of a chunk; two products that make states and one that reads them."""
    rule = DeltaRule(4096, 32, 128, 96, 64, "bf16")
    each = 3 * 64 * 128 + 2 * 64 * 96 + 3 * 128 * 96
    forward = 2 * 4096 * 32 * each
    assert sum(kernel.flops for kernel in rule.forward(1)) == forward
    assert sum(kernel.flops for kernel in rule.backward_input(1)) == pytest.approx(2 * forward)


def test_the_delta_rule_over_ranks_of_context_has_heads_for_positions() -> None:
    block = GatedDeltaNet()
    made = block.operators(replace(HIDDEN, rows=1024, context=ContextCut("cp", 4)))
    sent = [one.nbytes for operator in made for s in operator.segments("F", 1) for one in s.exchanges]
    assert sent == [1024 * features * 2 for features in (2048, 2048, 4096, 32, 32, 4096)]
    alone, shared = (sum(k.flops for one in part for k in one.forward(1)) for part in (block.operators(HIDDEN), made))
    assert shared == alone / 4
    assert "do not divide" in block.context_fault(HIDDEN, ContextCut("cp", 3))
    assert Mamba().context_fault(HIDDEN, ContextCut("cp", 2)) == "Mamba is not made for it"


def test_the_scan_of_mamba_is_slower_than_that_of_mamba2() -> None:
    """Dao and Gu 2024, section 9.3: 2 to 8 times on an A100, here for equal inner features and a state of 64."""
    from clustersim.topologies.catalogue import GPUS, device

    a100 = device(GPUS, "a100_80gb").accelerator()
    one, two = Mamba(state_size=64), Mamba2(state_size=64, n_groups=1)
    scans = one.operators(HIDDEN)[-2], two.operators(HIDDEN)[2]
    times = [sum(a100.kernel_seconds(k) for k in (*s.forward(1), *s.backward_input(1))) for s in scans]
    assert 2 < times[0] / times[1] < 8
