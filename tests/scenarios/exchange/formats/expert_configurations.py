"""Published configurations of mixtures of experts, of latent attention and of encoder-decoders.

As in `configurations`: keys of each ``config.json`` on Hugging Face, and the parameters of the checkpoint. DeepSeek-V3
is counted without its module for further tokens; its corrections of router scores are parameters.
"""

from typing import Any

from tests.scenarios.exchange.formats.configurations import llama

LATENT = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_layer_freq": 1,
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}


def mixtral(layers: int, hidden: int, heads: int, inner: int, length: int, vocabulary: int) -> dict[str, Any]:
    """The configuration of a Mixtral."""
    routing = {"num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.02}
    more = {"model_type": "mixtral", "sliding_window": None, "output_router_logits": False, **routing}
    return llama(layers, hidden, heads, 8, inner, length, vocabulary, **more)


def qwen3_moe(layers: int, hidden: int, heads: int, inner: int, expert: int) -> dict[str, Any]:
    """The configuration of a Qwen 3 with experts."""
    routing = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": expert, "norm_topk_prob": True}
    layout = {"decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.001}
    more = {"model_type": "qwen3_moe", "head_dim": 128, "use_sliding_window": False, **routing, **layout}
    return llama(layers, hidden, heads, 4, inner, 40960, 151936, **more)


def gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    """The configuration of a GPT-OSS."""
    routing = {"num_local_experts": experts, "num_experts_per_tok": 4, "experts_per_token": 4, "swiglu_limit": 7.0}
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    attention = {"head_dim": 64, "sliding_window": 128, "layer_types": kinds, "attention_bias": True}
    return llama(layers, 2880, 64, 8, 2880, 131072, 201088, model_type="gpt_oss", **routing, **attention)


def t5(layers: int, hidden: int, heads: int, inner: int, activation: str, tied: bool, head: int = 64) -> dict[str, Any]:
    """The configuration of a T5: of the first version, with gated activations of version 1.1."""
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "d_model": hidden,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": heads,
        "d_kv": head,
        "d_ff": inner,
        "vocab_size": 32128,
        "feed_forward_proj": activation,
        "relative_attention_num_buckets": 32,
        "dropout_rate": 0.1,
        "tie_word_embeddings": tied,
        "layer_norm_epsilon": 1e-6,
    }


V2_LITE = llama(
    *(27, 2048, 16, 16, 10944, 163840, 102400),
    model_type="deepseek_v2",
    q_lora_rank=None,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
    moe_intermediate_size=1408,
    first_k_dense_replace=1,
    topk_method="greedy",
    n_group=1,
    topk_group=1,
    **LATENT,
)

V3 = llama(
    *(61, 7168, 128, 128, 18432, 163840, 129280),
    model_type="deepseek_v3",
    q_lora_rank=1536,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    first_k_dense_replace=3,
    topk_method="noaux_tc",
    n_group=8,
    topk_group=4,
    **{**LATENT, "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5},
)

EXPERT_MODELS = {
    "mixtral_8x7b": (mixtral(32, 4096, 32, 14336, 32768, 32000), 46_702_792_704),
    "mixtral_8x22b": (mixtral(56, 6144, 48, 16384, 65536, 32000), 140_620_634_112),
    "deepseek_v2_lite": (V2_LITE, 15_706_484_224),
    "deepseek_v3": (V3, 671_026_419_200),
    "qwen3_30b_a3b": (qwen3_moe(48, 2048, 32, 6144, 768), 30_532_122_624),
    "qwen3_235b_a22b": (qwen3_moe(94, 4096, 64, 12288, 1536), 235_093_634_560),
    "gpt_oss_20b": (gpt_oss(24, 32), 20_914_757_184),
    "gpt_oss_120b": (gpt_oss(36, 128), 116_829_156_672),
    "t5_small": (t5(6, 512, 8, 2048, "relu", True), 60_506_624),
    "t5_11b": (t5(24, 1024, 128, 65536, "relu", True, 128), 11_307_321_344),
    "flan_t5_xxl": (t5(24, 4096, 64, 10240, "gated-gelu", False), 11_135_332_352),
}
"""Configuration and parameters by name."""
