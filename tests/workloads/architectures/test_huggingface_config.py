"""Configurations of Hugging Face: their parameters are those of the catalogue, and faults name file and key."""

import json
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.workloads.architectures.huggingface_config import model_section
from clustersim.workloads.architectures.specification import model


def llama(layers: int, hidden: int, heads: int, groups: int, ffn: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
        **more,
    }


def neox(layers: int, hidden: int, heads: int, vocabulary: int) -> dict[str, Any]:
    sizes = llama(layers, hidden, heads, heads, 4 * hidden, vocabulary, model_type="gpt_neox")
    del sizes["num_key_value_heads"]
    return sizes | {"max_position_embeddings": 2048, "use_parallel_residual": True}


def opt(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_dim": 4 * hidden,
        "max_position_embeddings": 2048,
        "vocab_size": 50272,
        "word_embed_proj_dim": hidden,
        "do_layer_norm_before": True,
    }


def gpt2(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    sizes = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "n_positions": 1024, "vocab_size": 50257}
    return {"model_type": "gpt2", "n_inner": None, **sizes}


def bert(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    sizes = llama(layers, hidden, heads, heads, 4 * hidden, 30522, model_type="bert", max_position_embeddings=512)
    del sizes["num_key_value_heads"]
    return sizes | {"architectures": ["BertForPreTraining"], "type_vocab_size": 2}


def t5(layers: int, hidden: int, heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    sizes = {"num_layers": layers, "d_model": hidden, "num_heads": heads, "d_kv": 64, "d_ff": ffn, "vocab_size": 32128}
    return {"model_type": "t5", **sizes, "relative_attention_num_buckets": 32, "dropout_rate": 0.1, **more}


def qwen(layers: int, hidden: int, heads: int, groups: int, **more: Any) -> dict[str, Any]:
    sizes = llama(layers, hidden, heads, groups, 6144, 151936, model_type="qwen3_moe", head_dim=128)
    return sizes | {"decoder_sparse_step": 1, "mlp_only_layers": [], **more}


def deepseek(layers: int, hidden: int, heads: int, ffn: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    sizes = llama(layers, hidden, heads, heads, ffn, vocabulary, model_type="deepseek_v3")
    latent = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    return sizes | latent | {"q_lora_rank": 1536, "moe_layer_freq": 1, **more}


V3 = {
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
}

LITE = {
    "model_type": "deepseek_v2",
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
}

OSS = {
    "model_type": "gpt_oss",
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "attention_bias": True,
    "sliding_window": 128,
}

QWEN2 = {
    "model_type": "qwen2_moe",
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
    "sliding_window": 65536,
    "use_sliding_window": False,
}

PHI = {
    "model_type": "phimoe",
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "attention_bias": True,
    "lm_head_bias": True,
}

NEMOTRON = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "attention_head_dim": 128,
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "expand": 2,
    "mlp_hidden_act": "relu2",
}

NANO = {
    **NEMOTRON,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "head_dim": 128,
    "mamba_num_heads": 64,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
}

JAMBA = {
    "model_type": "jamba",
    "attn_layer_offset": 4,
    "attn_layer_period": 8,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_dt_rank": 256,
    "mamba_expand": 2,
    "num_experts": 16,
    "num_experts_per_tok": 2,
}

NEXT = {
    "model_type": "qwen3_next",
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "moe_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "shared_expert_intermediate_size": 512,
}

MAMBA2 = {
    "model_type": "mamba2",
    "num_hidden_layers": 64,
    "hidden_size": 2560,
    "vocab_size": 50288,
    "state_size": 128,
    "num_heads": 80,
    "head_dim": 64,
    "expand": 2,
    "n_groups": 1,
    "chunk_size": 256,
    "tie_word_embeddings": True,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "mamba2_2_7b": MAMBA2,
    "nemotron_h_8b": llama(52, 4096, 32, 8, 21504, 131072, **NEMOTRON),
    "nemotron3_nano_30b": llama(52, 2688, 32, 2, 1856, 131072, **NANO),
    "jamba_52b": llama(32, 4096, 32, 8, 14336, 65536, **JAMBA),
    "qwen3_next_80b": llama(48, 2048, 16, 2, 5120, 151936, **NEXT),
    "mixtral_8x7b": llama(32, 4096, 32, 8, 14336, 32000, model_type="mixtral", num_local_experts=8),
    "qwen2_57b_a14b": llama(28, 3584, 28, 4, 18944, 151936, **QWEN2),
    "qwen3_30b_a3b": qwen(48, 2048, 32, 4, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768),
    "qwen3_235b_a22b": qwen(94, 4096, 64, 4, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=1536),
    "deepseek_v3": deepseek(61, 7168, 128, 18432, 129280, **V3),
    "deepseek_v2_lite": deepseek(27, 2048, 16, 10944, 102400, **LITE),
    "gpt_oss_20b": llama(24, 2880, 64, 8, 2880, 201088, **OSS),
    "phi_3_5_moe": llama(32, 4096, 32, 8, 6400, 32064, **PHI),
    "t5_base": t5(12, 768, 12, 3072, num_decoder_layers=12, n_positions=512),
    "flan_t5_xxl": t5(24, 4096, 64, 10240, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "llama_7b": llama(32, 4096, 32, 32, 11008, 32000),
    "llama2_13b": llama(40, 5120, 40, 40, 13824, 32000),
    "llama2_70b": llama(80, 8192, 64, 8, 28672, 32000),
    "llama3_8b": llama(32, 4096, 32, 8, 14336, 128256, rope_theta=500000.0),
    "llama3_405b": llama(126, 16384, 128, 8, 53248, 128256),
    "llama3_2_1b": llama(16, 2048, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True),
    "mistral_7b": llama(32, 4096, 32, 8, 14336, 32000, model_type="mistral", sliding_window=4096),
    "mistral_nemo_12b": llama(40, 5120, 32, 8, 14336, 131072, model_type="mistral", head_dim=128, sliding_window=None),
    "qwen2_0_5b": llama(24, 896, 14, 2, 4864, 151936, model_type="qwen2", tie_word_embeddings=True),
    "qwen2_5_32b": llama(64, 5120, 40, 8, 27648, 152064, model_type="qwen2", use_sliding_window=False),
    "qwen3_8b": llama(36, 4096, 32, 8, 12288, 151936, model_type="qwen3", head_dim=128, attention_bias=False),
    "qwen3_32b": llama(64, 5120, 64, 8, 25600, 151936, model_type="qwen3", head_dim=128),
    "gemma_7b": llama(28, 3072, 16, 16, 24576, 256000, model_type="gemma", head_dim=256, hidden_act="gelu"),
    "gemma2_9b": llama(42, 3584, 16, 8, 14336, 256000, model_type="gemma2", head_dim=256, sliding_window=4096),
    "gemma3_1b": llama(26, 1152, 4, 1, 6912, 262144, model_type="gemma3_text", head_dim=256),
    "phi_2": llama(32, 2560, 32, 32, 10240, 51200, model_type="phi", hidden_act="gelu_new"),
    "phi_3_mini": llama(32, 3072, 32, 32, 8192, 32064, model_type="phi3", sliding_window=2047),
    "phi_4": llama(40, 5120, 40, 10, 17920, 100352, model_type="phi3"),
    "olmo2_7b": llama(32, 4096, 32, 32, 11008, 100352, model_type="olmo2"),
    "command_r_35b": llama(40, 8192, 64, 64, 22528, 256000, model_type="cohere"),
    "starcoder2_3b": llama(30, 3072, 24, 2, 12288, 49152, model_type="starcoder2", use_bias=True),
    "granite_3_8b": llama(40, 4096, 32, 8, 12800, 49152, model_type="granite", tie_word_embeddings=True),
    "falcon_7b": {
        "model_type": "falcon",
        "num_hidden_layers": 32,
        "hidden_size": 4544,
        "num_attention_heads": 71,
        "vocab_size": 65024,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
    },
    "falcon_40b": {
        "model_type": "falcon",
        "num_hidden_layers": 60,
        "hidden_size": 8192,
        "num_attention_heads": 128,
        "vocab_size": 65024,
        "new_decoder_architecture": True,
        "num_kv_heads": 8,
        "bias": False,
    },
    "mpt_7b": {
        "model_type": "mpt",
        "n_layers": 32,
        "d_model": 4096,
        "n_heads": 32,
        "max_seq_len": 2048,
        "vocab_size": 50432,
        "no_bias": True,
        "attn_config": {"alibi": True, "attn_impl": "triton"},
    },
    "gpt_neox_20b": neox(44, 6144, 64, 50432),
    "pythia_2_8b": neox(32, 2560, 32, 50304),
    "opt_125m": opt(12, 768, 12),
    "opt_30b": opt(48, 7168, 56),
    "bloom_7b1": {
        "model_type": "bloom",
        "n_layer": 30,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "vocab_size": 250880,
    },
    "gpt2": gpt2(12, 768, 12),
    "gpt2_xl": gpt2(48, 1600, 25),
    "bert_base": bert(12, 768, 12),
    "bert_large": bert(24, 1024, 16),
}
"""Sizes as the repositories on Hugging Face document them."""

SCENARIO = """\
version: 1
cluster: {preset: dgx_h100}
model: {preset: config.json}
training: {global_batch_size: 8, precision: bf16}
"""


def loaded(folder: Path, config: Any, **changes: Any) -> Scenario:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    (folder / "x.yaml").write_text(SCENARIO)
    return Scenario.load(folder / "x.yaml", {f"model.{key}": value for key, value in changes.items()})


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_catalogue(tmp_path: Path, name: str) -> None:
    made = loaded(tmp_path, CONFIGS[name]).model
    assert made is not None
    assert made.parameters == model(name).parameters


def test_keys_beside_the_file_override_it(tmp_path: Path) -> None:
    made = loaded(tmp_path, CONFIGS["llama3_8b"], num_hidden_layers=2, seq_length=512).model
    assert made is not None
    assert made.tokens_per_sample == 512
    assert len(made.layers) == 4  # with embedding and head


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("BertForQuestionAnswering", 108_893_186),
        ("BertForSequenceClassification", 109_483_778),
        ("BertForMaskedLM", 109_514_298),
    ],
)
def test_the_architecture_names_the_head(tmp_path: Path, name: str, count: int) -> None:
    made = loaded(tmp_path, {**bert(12, 768, 12), "architectures": [name]}).model
    assert made is not None
    assert made.parameters == count


def test_a_window_as_long_as_the_sequence_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["mistral_7b"]))
    assert "attention_window" not in model_section(read(tmp_path / "config.json")).data
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS["mistral_7b"], "sliding_window": 1024}))
    assert model_section(read(tmp_path / "config.json")).data["attention_window"] == 1024


FAULTS = {
    json.dumps({"model_type": "lama"}): '1:16: model_type: unknown family "lama"; there are: llama, mistral',
    json.dumps({"model_type": 3}): '1:16: model_type: unknown family "3"',
    json.dumps({"model_type": "llama"}): "1:1: needs num_hidden_layers, as a llama has it",
    json.dumps({"model_type": "gpt2", "n_layer": "12"}): "1:35: n_layer: must be a whole number, not '12'",
    json.dumps(
        {**CONFIGS["mistral_7b"], "num_local_experts": 8}
    ): "num_local_experts: the family mistral has no experts",
    json.dumps({**CONFIGS["mixtral_8x7b"], "num_experts_per_tok": 9}): "moe_router_topk: 9 is more than the 8 experts",
    json.dumps({**CONFIGS["qwen3_30b_a3b"], "decoder_sparse_step": 0}): "decoder_sparse_step: must be a whole number",
    json.dumps({**opt(12, 768, 12), "do_layer_norm_before": False}): "do_layer_norm_before: norms after each residual",
    json.dumps({**opt(24, 1024, 16), "word_embed_proj_dim": 512}): "word_embed_proj_dim: an embedding of another width",
    json.dumps({**CONFIGS["llama_7b"], "mlp_bias": 3}): "mlp_bias: must be true or false",
    json.dumps({**CONFIGS["llama_7b"], "num_key_value_heads": 5}): "num_key_value_heads: 5 does not divide",
    json.dumps({**CONFIGS["llama_7b"], "hidden_act": "mish"}): "activation: must be gelu, gelu_new, relu",
    json.dumps({**MAMBA2, "use_bias": True}): "use_bias: biases of the products of a mixer are not modelled",
    json.dumps({**MAMBA2, "n_groups": 7}): "n_groups: 7 does not divide the 80 heads",
    json.dumps({**CONFIGS["nemotron_h_8b"], "hybrid_override_pattern": "M-*"}): (
        "hybrid_override_pattern: must have one of M, *, -, E for each of the 52 layers"
    ),
    json.dumps({**CONFIGS["nemotron_h_8b"], "hybrid_override_pattern": None}): (
        "model_type: needs layers_block_type or hybrid_override_pattern"
    ),
    json.dumps({**CONFIGS["jamba_52b"], "attn_layer_offset": 8}): "attn_layer_period: must be above attn_layer_offset",
    json.dumps({**CONFIGS["qwen3_next_80b"], "layer_types": ["full"]}): (
        "layer_types: must have one of linear_attention, full_attention for each of the 48 layers"
    ),
    json.dumps({**CONFIGS["qwen3_next_80b"], "full_attention_interval": 0}): "full_attention_interval: must be a whole",
    json.dumps({**CONFIGS["mpt_7b"], "attn_config": [1]}): "attn_config: must be a mapping",
    json.dumps({**CONFIGS["mistral_7b"], "sliding_window": "x"}): "sliding_window: must be a whole number, not 'x'",
    "[1, 2]": "must be a mapping (key: value) at the top",
    '{"model_type": ': "not valid YAML",
}


@pytest.mark.parametrize(("text", "message"), FAULTS.items(), ids=range(len(FAULTS)))
def test_faults_name_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        loaded(tmp_path, text)
    assert "config.json:1:" in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("family", "key", "value", "said"),
    [
        ("bert", "architectures", True, "must be a list of names, not 'True'"),
        ("bert", "architectures", [[]], "must be a list of names"),
        ("mpt", "expansion_ratio", "4", "must be a whole number"),
        ("mpt", "no_bias", [], "must be true or false"),
        ("falcon", "num_kv_heads", {}, "must be a whole number"),
        ("llama", "mlp_bias", "no", "must be true or false"),
        ("gpt2", "tie_word_embeddings", 3, "must be true or false"),
    ],
)
def test_values_of_a_wrong_kind_are_told_at_their_key(family: str, key: str, value: object, said: str) -> None:
    sizes: dict[str, object] = {
        **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
        **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 64),
        **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
        **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 64),
    }
    document = Document({"model_type": family, **sizes, "vocab_size": 99, "new_decoder_architecture": True, key: value})
    with pytest.raises(ScenarioError) as caught:
        model_section(document)
    assert str(caught.value).startswith(f"{key}: {said}")
