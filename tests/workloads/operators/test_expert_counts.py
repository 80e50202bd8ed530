"""Parameters of mixtures of experts against published totals, all and active ones, and the formula of a layer."""

import pytest

from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.validation import validated
from clustersim.workloads.architectures.shape import Embedding, Mlp, Norm, SelfAttention, Shape
from clustersim.workloads.architectures.specification import _Holder, model
from clustersim.workloads.architectures.transformer import Transformer, transformer
from clustersim.workloads.operators.attentions.core_attention import Latent
from clustersim.workloads.operators.experts import Experts

TOTALS = {  # totals of the weights on Hugging Face, of the repositories that the files name
    "mixtral_8x7b": 46_702_792_704,
    "mixtral_8x22b": 140_620_634_112,
    "qwen1_5_moe_a2_7b": 14_315_784_192,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "deepseek_v2": 235_741_434_880,
    "deepseek_v2_lite": 15_706_484_224,
    "deepseek_v3": 671_026_419_200,
    "kimi_k2": 1_026_408_232_448,
    "kimi_k2_5": 1_026_408_232_448,
    "qwen3_coder_480b": 480_154_875_392,
    "minimax_m2": 228_689_764_864,
    "llama4_maverick": 400_711_848_960,
    "gpt_oss_20b": 20_914_757_184,
    "gpt_oss_120b": 116_829_156_672,
    "llama4_scout": 107_769_861_120,
    "phi_3_5_moe": 41_873_153_344,
    "dbrx": 131_596_523_520,
    "olmoe_1b_7b": 6_919_161_856,
}

ROUNDED = {  # billions as papers print them: (all, active)
    "mixtral_8x7b": (46.7, 12.9),  # arXiv:2401.04088, section 2; blog of 11 December 2023
    "mixtral_8x22b": (140.6, 39.2),  # "39B active parameters out of 141B"
    "qwen2_57b_a14b": (57.4, 14.2),  # arXiv:2407.10671: 57B, 14B
    "qwen3_30b_a3b": (30.5, 3.4),  # model card: 30.5B, 3.3B
    "qwen3_235b_a22b": (235.1, 22.2),  # model card: 235B, 22B
    "deepseek_v2": (235.7, 21.4),  # arXiv:2405.04434: 236B, 21B
    "deepseek_v3": (671.0, 37.6),  # arXiv:2412.19437: 671B, 37B
    "qwen3_coder_480b": (480.2, 35.5),  # model card: 480B, 35B
    "minimax_m2": (228.7, 11.0),  # model card: 230B, 10B without the embedding of 1.2B
    "kimi_k2": (1026.4, 32.9),  # arXiv:2507.20534, table 2: 1.04T, 32.6B
    "grok_1": (315.7, 83.8),  # 314B, "25 % of the weights active"
    "glm4_5": (352.8, 33.6),  # arXiv:2508.06471, table 1: 355B, 32B
    "glm4_5_air": (106.9, 13.4),  # 106B, 12B
    "llama4_maverick": (400.7, 17.2),  # model card: 400B, 17B
    "granite_3_1b_a400m": (1.3, 0.4),  # model card: 1.3B, 400M
    "granite_3_3b_a800m": (3.3, 0.9),  # 3.3B, 800M
    "dbrx": (131.6, 36.5),  # model card: 132B, 36B
    "olmoe_1b_7b": (6.9, 1.3),  # arXiv:2409.02060: 6.9B, 1.3B
    "phi_3_5_moe": (41.9, 6.6),  # model card: 42B, 6.6B
}


def test_switch_is_t5_with_128_experts_in_every_other_layer_of_encoder_and_decoder() -> None:
    """arXiv:2101.03961, table 9: 7.4 billion parameters; a token uses those of T5 and the routers."""
    dense, made = model("t5_base"), model("switch_base")
    expert, router = 2 * 768 * 3072, 768 * 128
    assert made.parameters == dense.parameters + 12 * (127 * expert + router) == 7_415_217_408
    assert made.active_parameters == dense.parameters + 12 * router
    sparse = [layer.name for layer in made.layers if layer.parameters > 100 * expert]
    assert sparse == [f"{part} layer {number}" for part in ("encoder", "decoder") for number in range(1, 12, 2)]


@pytest.mark.parametrize(("name", "count"), TOTALS.items())
def test_published_totals(name: str, count: int) -> None:
    assert model(name).parameters == count


@pytest.mark.parametrize(("name", "billions"), ROUNDED.items())
def test_rounded_totals_and_active_parameters(name: str, billions: tuple[float, float]) -> None:
    made = model(name)
    assert (round(made.parameters / 1e9, 1), round(made.active_parameters / 1e9, 1)) == billions


@pytest.mark.parametrize(("name", "billions"), [("gpt_oss_120b", 5.13), ("gpt_oss_20b", 3.61)])
def test_active_parameters_of_gpt_oss_do_not_count_the_embedding(name: str, billions: float) -> None:
    """arXiv:2508.10925, table 1, counts the unembedding only; here both count."""
    made = model(name)
    assert round((made.active_parameters - made.layers[0].parameters) / 1e9, 2) == billions


@pytest.mark.parametrize(("name", "billions"), [("glm4_5", 32), ("glm4_5_air", 12)])
def test_active_parameters_of_glm_count_neither_embedding_nor_unembedding(name: str, billions: int) -> None:
    """arXiv:2508.06471, table 1, leaves out word embeddings and the output layer; here both count."""
    made = model(name)
    assert isinstance(made, Transformer)
    assert made.layers[0].parameters == 151_552 * made.shape.hidden_size
    assert round((made.active_parameters - 2 * made.layers[0].parameters) / 1e9) == billions


def test_a_layer_is_the_formula() -> None:
    h, f, shared, e, k = 64, 32, 48, 8, 3
    experts = Experts(e, k, f, shared=shared, shared_gate=True, dense_first=1)
    shape = Shape(
        3,
        h,
        128,
        1000,
        SelfAttention(4, 4, bias=False),
        Mlp(4 * h, "swiglu", bias=False),
        norm=Norm("rmsnorm"),
        embedding=Embedding(positions="rope", tied=False),
        experts=experts,
    )
    _, dense, sparse, *_ = transformer(shape).layers
    assert dense.parameters == 4 * h * h + 3 * h * 4 * h + 2 * h
    assert sparse.parameters == 4 * h * h + e * h + e * 3 * h * f + 3 * h * shared + h + 2 * h
    assert sparse.active_parameters == sparse.parameters - (e - k) * 3 * h * f
    tokens = 128
    products = 2 * tokens * (4 * h * h + e * h + k * 3 * h * f + 3 * h * shared + h) + 4 * tokens * tokens * h
    assert sum(kernel.flops for kernel in sparse.forward(1)) == products
    assert sum(kernel.flops for kernel in sparse.backward(1)) == 2 * products


def test_latent_attention_is_the_formula() -> None:
    """arXiv:2405.04434, section 2.1."""
    h, heads, ql, kvl, nope, rope, v = 256, 4, 96, 64, 32, 16, 24
    latent = Latent(ql, kvl, nope, rope, v)
    shape = Shape(
        1,
        h,
        128,
        1000,
        SelfAttention(heads, heads, bias=False, kind="flash", latent=latent),
        Mlp(4 * h, "swiglu", bias=False),
        norm=Norm("rmsnorm"),
        embedding=Embedding(positions="rope"),
    )
    layer = transformer(shape).layers[1]
    queries = h * ql + ql + ql * heads * (nope + rope)
    keys = h * (kvl + rope) + kvl + kvl * heads * (nope + v)
    weights = queries + keys + heads * v * h + 3 * h * 4 * h
    assert layer.parameters == weights + 2 * h
    tokens = 128
    scores = 2 * tokens * tokens * heads * (nope + rope + v)
    assert sum(kernel.flops for kernel in layer.forward(1)) == 2 * tokens * (weights - ql - kvl) + scores
    assert sum(kernel.flops for kernel in layer.backward(1)) == 2 * (2 * tokens * (weights - ql - kvl) + scores)


def test_flops_of_a_training_step_are_six_times_the_active_parameters() -> None:
    """Without attention's products and the embedding's table."""
    made = model("mixtral_8x7b", "bf16")
    tokens = made.tokens_per_sample
    attention = 3 * 32 * 4 * tokens * tokens * 4096
    norms = 65 * 4096
    products = 6 * tokens * (made.active_parameters - made.layers[0].parameters - norms)
    assert made.flops(1) == pytest.approx(products + attention, rel=1e-12)


SMALL = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 100,
}

FAULTS = [
    ({"moe_router_topk": 3}, "moe_router_topk: belongs to a mixture of experts; give num_experts too"),
    ({"num_experts": 4, "moe_router_topk": 5}, "moe_router_topk: 5 is more than the 4 experts"),
    ({"num_experts": 10**6}, "num_experts: 1000000 is absurd"),
    ({"num_experts": 8, "n_group": 3}, "n_group: 3 groups do not divide the 8 experts"),
    ({"num_experts": 8, "n_group": 4, "topk_group": 5}, "topk_group: 5 is more than the 4 groups"),
    ({"num_experts": 8, "n_group": 8, "topk_group": 1}, "topk_group: 1 groups have 1 experts; each token has 2"),
    ({"num_experts": 8, "first_k_dense_replace": 4}, "first_k_dense_replace: 4 leaves no layer of 4 for experts"),
    ({"num_experts": 8, "moe_layer_freq": [0, 0]}, "moe_layer_freq: has no 1"),
    ({"num_experts": 8, "capacity_factor": 0}, "capacity_factor: 0 drops every token"),
    ({"num_experts": 8, "pad_to_capacity": True}, "pad_to_capacity: belongs to a capacity_factor"),
    ({"num_experts": 8, "moe_shared_expert_gate": True}, "moe_shared_expert_gate: belongs to a shared expert"),
    (
        {"num_experts": 8, "router_load": "skewed"},
        'router_load: must be balanced, {zipf: s} or a .csv file, not "skewed"',
    ),
    ({"num_experts": 8, "router_load": {"zipf": -1}}, "router_load.zipf: must be at least 0, not -1"),
    ({"num_experts": 8, "block": "parallel"}, "block: parallel is not modelled with experts"),
    ({"q_lora_rank": 16}, "q_lora_rank: belongs to latent attention; give kv_lora_rank too"),
    ({"kv_lora_rank": 16}, "attention: must be flash with kv_lora_rank, not unfused"),
]


@pytest.mark.parametrize(("keys", "message"), FAULTS, ids=range(len(FAULTS)))
def test_faults_name_the_key(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        validated(Document({"model": {**SMALL, **keys}}, {}), _Holder)
    assert message in str(error.value)
