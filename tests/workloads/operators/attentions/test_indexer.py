"""Attention to tokens that an indexer chooses: scores, FLOPs and exchanges in closed form."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
from clustersim.workloads.architectures.specification import model, specification
from clustersim.workloads.architectures.transformer import Transformer
from clustersim.workloads.operators.attentions.context_parallel import ContextCut
from clustersim.workloads.operators.attentions.core_attention import FlashAttention
from clustersim.workloads.operators.attentions.indexed_attention import IndexedLatentAttention, indexed_latent_attention
from clustersim.workloads.operators.attentions.indexer import Index, Selection
from clustersim.workloads.operators.model import Layer, OperatorLayer
from clustersim.workloads.operators.sharded import WHOLE, Cut
from clustersim.workloads.parallelism.context import Context as ContextParallelism

INDEX = Index(64, 128, 2048)
V3_2 = specification("deepseek_v3_2")


def shaped(length: int, **changes: object) -> Transformer:
    made = V3_2.model_copy(update={"seq_length": length, "num_layers": 8, **changes}).build("bf16")
    assert isinstance(made, Transformer)
    return made


def flops(layer: Layer) -> float:
    return sum(kernel.flops for kernel in (*layer.forward(1), *layer.backward(1)))


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_row_attends_to_those_before_it_or_to_the_chosen_ones(length: int, topk: int) -> None:
    """The mean over the rows; a position counts half of the score with itself, as under a causal mask elsewhere."""
    by_hand = sum(min(row + 0.5, topk) for row in range(length)) / length
    assert Index(1, 1, topk).keys(length) == pytest.approx(by_hand, abs=1.0)


def test_the_indexer_counts_all_scores_forward_and_the_chosen_backward() -> None:
    choose = Selection(INDEX, 32768, 32768, "bf16")
    assert sum(kernel.flops for kernel in choose.forward(1)) == 2 * 32768**2 * 64 * 128
    assert sum(kernel.flops for kernel in choose.backward_input(1)) == 4 * 32768 * INDEX.keys(32768) * 64 * 128


def test_attention_is_linear_in_the_sequence_and_beats_all_scores_beyond_some_length() -> None:
    """DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1: O(L k) for attention; the indexer keeps O(L^2), at less cost."""
    core = {
        length: IndexedLatentAttention(length, 128, 128, 576, False, True, "bf16", value_size=512, index=INDEX)
        for length in (65536, 131072)
    }
    one, two = (sum(k.flops for k in core[length].forward(1)) for length in core)
    assert two == pytest.approx(2 * one, rel=0.02)
    dense, sparse = (model("deepseek_v3"), model("deepseek_v3_2"))
    assert sparse.parameters - dense.parameters == 61 * (1536 * 8192 + 7168 * (128 + 64) + 2 * 128)
    per_token = {n: [flops(shaped(n, index_topk=k).layers[5]) / n for k in (None, 2048)] for n in (4096, 131072)}
    assert per_token[4096][0] < per_token[4096][1]
    assert per_token[131072][0] > 3 * per_token[131072][1]


def test_tensor_parallel_ranks_have_the_whole_indexer_and_sum_probabilities() -> None:
    latent = V3_2.latent  # type: ignore[attr-defined]
    assert latent and latent.index

    def made(cut: Cut) -> tuple[float, list[str], float]:
        heads = 128 // cut.ranks
        before, after = indexed_latent_attention(
            latent, latent.index or INDEX, 4096, heads, 7168, cut, ContextCut(), "bf16"
        )
        segments = [s for one in (*before, *after) for s in one.segments("F", 1)]
        exchanges = [e for s in segments for e in s.exchanges]
        return (
            sum(t.count for one in before for t in one.tensors),
            [e.kind for e in exchanges],
            sum(e.nbytes for e in exchanges),
        )

    whole, cut = made(WHOLE), made(Cut("tp", 8))
    assert whole == (1536 * 8192 + 7168 * 192 + 256, [], 0)
    assert cut == (whole[0], ["all_reduce"], 4096 * INDEX.keys(4096) * 4)


def test_ranks_that_share_a_sequence_gather_the_small_vectors() -> None:
    whole = shaped(32768)
    cut = ContextParallelism(cp=4, cp_method="all_gather").share(whole)
    exchanges = [e for segment in cut.layers[5].segments("F", 1) for e in segment.exchanges]
    assert sorted(e.nbytes for e in exchanges) == [32768 * 128 * 2, 32768 * 576 * 2]
    assert flops(cut.layers[5]) == pytest.approx(flops(whole.layers[5]) / 4, rel=1e-3)
    with pytest.raises(ScenarioError, match="take cp_method: all_gather, not ring"):
        ContextParallelism(cp=4).share(whole)


def test_a_layer_may_take_the_choice_of_the_one_before() -> None:
    """GLM-5.2: one layer of four has an indexer."""
    shared = shaped(4096, index_layers=[1, 0])
    layers = [layer for layer in shared.layers[1:9] if isinstance(layer, OperatorLayer)]
    indexers = [any(isinstance(one, Selection) for one in layer.operators) for layer in layers]
    assert indexers == [True, False] * 4


def test_values_of_another_size_have_their_own_heads() -> None:
    one = FlashAttention(4096, 8, 8, 192, False, True, "bf16", value_size=128)
    grouped = replace(one, key_value_heads=2)
    assert one.kept_bytes(1) - grouped.kept_bytes(1) == 4096 * 6 * (192 + 128) * 2
    assert grouped.forward(1)[0].flops == one.forward(1)[0].flops


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kv_lora_rank": None, "q_lora_rank": None}, "belongs to latent attention; give kv_lora_rank too"),
        ({"index_layers": [0, 1]}, "must begin with 1"),
        ({"index_topk": None}, "belongs to an indexer; give index_topk too"),
    ],
)
def test_faults(changes: dict[str, object], message: str) -> None:
    given = {**V3_2.model_dump(exclude_unset=True), **changes}
    with pytest.raises((SimulatorError, ValueError), match=message):
        type(V3_2).model_validate({key: one for key, one in given.items() if one is not None})
