"""Placement of norms, norms of queries and keys, head sizes and biases of published transformers."""

from dataclasses import replace

import pytest

from clustersim.workloads.architectures.shape import Embedding, Mlp, Norm, SelfAttention, Shape
from clustersim.workloads.architectures.transformer import Transformer, transformer, transformer_operators
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.sharded import ShardedOperator
from clustersim.workloads.parallelism.tensor import sharded

H, A, S = 1024, 16, 512

LLAMA = Shape(
    *(2, H, S, 32000),
    SelfAttention(A, 4, kind="flash", bias=False),
    Mlp(2816, "swiglu", bias=False),
    Norm("rmsnorm"),
    Embedding(positions="rope"),
    dropout=False,
    precision="bf16",
)


def llama(**changes: object) -> Transformer:
    """`LLAMA` with *changes* of its attention."""
    return transformer(replace(LLAMA, attention=replace(LLAMA.attention, **changes)))  # type: ignore[arg-type]


def layer(model: Model) -> OperatorLayer:
    found = model.layers[1]
    assert isinstance(found, OperatorLayer)
    return found


def elements(operators: tuple[Operator, ...]) -> list[list[int]]:
    return [[tensor.count for tensor in operator.tensors] for operator in operators if operator.tensors]


@pytest.mark.parametrize(("placement", "norms"), [("before", [0, 3]), ("after", [2, 5]), ("both", [0, 3, 4, 7])])
def test_norms_stand_where_the_model_has_them(placement: str, norms: list[int]) -> None:
    tensors = elements(transformer_operators(replace(LLAMA, norm=replace(LLAMA.norm, placement=placement))))
    assert [place for place, counts in enumerate(tensors) if counts == [H]] == norms


def test_a_head_of_a_size_of_its_own_widens_the_products_of_attention() -> None:
    plain, wide = (layer(llama(head_dim=size)) for size in (0, 96))
    assert layer(llama(head_dim=H // A)).parameters == plain.parameters
    # queries and output of 16 heads, keys and values of 4, each 32 features wider
    assert wide.parameters - plain.parameters == (2 * A + 2 * 4) * 32 * H
    flops = (sum(kernel.flops for kernel in one.forward(1)) for one in (plain, wide))
    before, after = flops
    assert after - before == 2 * S * (wide.parameters - plain.parameters) + 4 * S**2 * A * 32


def test_a_parallel_block_of_two_norms_has_one_norm_more() -> None:
    one, two = (layer(transformer(replace(LLAMA, block=block))) for block in ("parallel", "parallel_two_norms"))
    assert two.parameters - one.parameters == H
    norm = 2 * S * H * 2  # bf16, read and written
    assert sum(kernel.nbytes for kernel in two.forward(1)) - sum(kernel.nbytes for kernel in one.forward(1)) == norm


def test_two_norms_exchange_the_gradients_of_both_inputs() -> None:
    def exchanges(block: str) -> int:
        found = layer(sharded(transformer(replace(LLAMA, block=block)), 2))
        return sum(len(part.before + part.after) for phase in "FI" for part in found.segments(phase, 1))

    assert (exchanges("parallel"), exchanges("parallel_two_norms")) == (2, 3)


def test_biases_of_queries_keys_and_values_alone() -> None:
    plain, biased = (layer(llama(qkv_bias=bias)) for bias in (False, True))
    assert biased.parameters - plain.parameters == (A + 2 * 4) * (H // A)


def test_norms_of_heads_are_on_every_rank_and_sum_their_gradients() -> None:
    found = layer(sharded(llama(qk_norm="per_head"), 2))
    norms = [tensor for tensor in found.tensors if tensor.count == H // A]
    assert [norm.reduced_over for norm in norms] == [("tp", "dp")] * 2


def test_norms_over_all_heads_are_cut_and_exchange_a_number_of_each_row() -> None:
    model = sharded(llama(qk_norm="all_heads"), 4)
    assert isinstance(model, Transformer)
    norms = [
        operator
        for operator in transformer_operators(model.shape)
        if isinstance(operator, ShardedOperator) and not operator.after and len(operator.before) == 2
    ]
    assert [norm.tensors[0].count for norm in norms] == [H // 4, 4 * (H // A) // 4]
    assert [exchange.nbytes for norm in norms for _, exchange in norm.before] == [4 * S] * 4


def test_a_table_of_positions_may_have_more_rows_than_the_sequence() -> None:
    gpt = Shape(2, H, S, 32000, SelfAttention(A, A), Mlp(4 * H))
    more = (
        transformer(replace(gpt, embedding=replace(gpt.embedding, position_rows=S + 2))).parameters
        - transformer(gpt).parameters
    )
    assert more == 2 * H


def test_the_logits_of_a_causal_model_may_have_a_bias() -> None:
    head = transformer(replace(LLAMA, embedding=replace(LLAMA.embedding, tied=False), head_bias=True)).layers[-1]
    assert [tensor.count for tensor in head.tensors] == [H, 32000 * H, 32000]
