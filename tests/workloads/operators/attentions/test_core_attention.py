"""Core attention: when its softmax is one kernel, and what it costs when it is not."""

import pytest

from clustersim.scenarios import Scenario
from clustersim.workloads.architectures.transformer import Transformer
from clustersim.workloads.operators.attentions.core_attention import CoreAttention
from clustersim.workloads.parallelism.tensor import sharded


def attention(heads: int, precision: str = "fp16", group: int = 4) -> CoreAttention:
    return CoreAttention(1024, heads, heads, 64, fused=True, precision=precision, group=group)


def launches(operator: CoreAttention, samples: int) -> int:
    return sum(kernel.launches for kernel in operator.forward(samples))


@pytest.mark.parametrize(("heads", "samples", "fused"), [(2, 1, False), (2, 2, True), (6, 1, False), (4, 1, True)])
def test_the_fused_softmax_takes_heads_and_samples_by_fours(heads: int, samples: int, fused: bool) -> None:
    """Else scores are cast to fp32, scaled, masked, normalised and cast back: four launches more."""
    assert launches(attention(heads), samples) == launches(attention(heads, group=1), samples) + (0 if fused else 4)


def test_where_it_does_not_scores_pass_through_fp32() -> None:
    scores = 2 * 1024**2
    apart, fused = (
        sum(kernel.nbytes for kernel in attention(2, group=group).forward(1) if not kernel.flops) for group in (4, 1)
    )
    # read and written in fp16; or cast (2 + 4), scaled (8), masked (8), normalised (8), cast back (4 + 2)
    assert apart - fused == scores * (36 - 4)
    # the softmax's output is kept in fp32
    kept = attention(2).recomputable_bytes(1) - attention(2, group=1).recomputable_bytes(1)
    assert kept == 2 * scores


def test_scores_in_fp32_have_no_casts_and_torch_has_no_groups() -> None:
    assert launches(attention(2, "fp32"), 1) == launches(attention(2, "fp32", group=1), 1)


@pytest.mark.parametrize(("stack", "group"), [("megatron", 4), ("fsdp", 1), ("ideal", 1)])
def test_the_stack_says_by_how_many(stack: str, group: int) -> None:
    scenario = Scenario.load("korthikanti_22b_layer", {"software": stack})
    model = next(iter(scenario.variants.values())).model
    assert isinstance(model, Transformer)
    share = sharded(model, 8)
    assert isinstance(share, Transformer)
    assert share.shape.software.softmax_group == group
