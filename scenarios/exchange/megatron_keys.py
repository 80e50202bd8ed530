"""Arguments of Megatron-LM that are one key of a scenario each, for import and export.

Arguments are those of Megatron-LM core_v0.15.3 (megatron/training/arguments.py), with ``_`` as argparse has them.
"""

from __future__ import annotations

from clustersim.scenarios.exchange.program_keys import Flag, Key, Number, Whole, Word

LAYERS = Whole("num_layers", "model.num_layers")
HIDDEN = Whole("hidden_size", "model.hidden_size")
HEADS = Whole("num_attention_heads", "model.num_attention_heads")
CHANNELS = Whole("kv_channels", "model.head_dim")
LENGTH = Whole("seq_length", "model.seq_length")
SIZES = (LAYERS, HIDDEN, HEADS, CHANNELS, LENGTH)
"""Sizes of a transformer."""

NEXT_TOKENS = Whole("mtp_num_layers", "model.num_nextn_predict_layers", least=0)

ACTIVATIONS = (
    Flag("swiglu", "model.activation", "swiglu"),
    Flag("squared_relu", "model.activation", "squared_relu"),
    Flag("quick_geglu", "model.activation", "geglu", written=False),
    Flag("openai_gelu", "model.activation", "gelu_new"),
)
"""Flags of the activation; without one of them it is gelu. ``quick_geglu`` is an approximation of geglu."""

NORMALIZATION = Word("normalization", "model.normalization", {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"})
POSITIONS = Word(
    "position_embedding_type",
    "model.position_embedding_type",
    {name: name for name in ("learned_absolute", "rope", "none")},
)
BACKEND = Word(
    "attention_backend",
    "model.attention",
    {"flash": "flash", "unfused": "unfused", "local": "unfused"}
    | {"AttnBackend.unfused": "unfused", "AttnBackend.local": "unfused"},
)
"""Any other backend, such as ``auto``, is read as flash."""
UNTIED = Flag("untie_embeddings_and_output_weights", "model.tie_embeddings", False)
UNBIASED = Flag("disable_bias_linear", "model.add_bias_linear", False)
QKV_BIAS = Flag("add_qkv_bias", "model.add_qkv_bias")
QK_NORM = Flag("qk_layernorm", "model.qk_norm", "per_head")

COUNT = Whole("num_experts", "model.num_experts", least=0)
TOPK = Whole("moe_router_topk", "model.moe_router_topk", least=0)
EXPERTS = (
    TOPK,
    Whole("moe_ffn_hidden_size", "model.moe_ffn_hidden_size", least=0),
    Whole("moe_shared_expert_intermediate_size", "model.moe_shared_expert_intermediate_size", least=0),
    Whole("moe_router_num_groups", "model.n_group", least=0),
    Whole("moe_router_group_topk", "model.topk_group", least=0),
)
"""Sizes of a mixture of experts."""
ROUTER_BIAS = Flag("moe_router_enable_expert_bias", "model.moe_router_bias")
CAPACITY = Number("moe_expert_capacity_factor", "model.capacity_factor")
PADDED = Flag("moe_pad_expert_input_to_capacity", "model.pad_to_capacity")
OVERLAP_BATCH = Flag("overlap_moe_expert_parallel_comm", "parallelism.moe_overlap", "batch")
OVERLAP_SHARED = Flag("moe_shared_expert_overlap", "parallelism.moe_overlap", "shared_experts")

LATENT_RANK = Whole("kv_lora_rank", "model.kv_lora_rank")
LATENT = (
    Whole("q_lora_rank", "model.q_lora_rank"),
    LATENT_RANK,
    Whole("qk_head_dim", "model.qk_nope_head_dim"),
    Whole("qk_pos_emb_head_dim", "model.qk_rope_head_dim"),
    Whole("v_head_dim", "model.v_head_dim"),
)
"""Sizes of latent attention."""

MICRO_BATCH = Whole("micro_batch_size", "training.micro_batch_size")
BATCH = Whole("global_batch_size", "training.global_batch_size")
OPTIMIZER = Word("optimizer", "training.optimizer", {"adam": "adam", "sgd": "momentum"})
ON_HOST = Flag("optimizer_cpu_offload", "training.offload.optimizer", "host")
HOST_SHARE = Number("optimizer_offload_fraction", "training.offload.optimizer_fraction")
HOST_OVERLAP = Flag("overlap_cpu_optimizer_d2h_h2d", "training.offload.overlap")

TENSOR = Whole("tensor_model_parallel_size", "parallelism.tp")
PIPELINE = Whole("pipeline_model_parallel_size", "parallelism.pp")
CONTEXT = Whole("context_parallel_size", "parallelism.cp")
EXPERT = Whole("expert_model_parallel_size", "parallelism.ep")
DEGREES = (TENSOR, PIPELINE, CONTEXT, EXPERT)
"""Degrees of parallelism."""
EXPERT_TENSOR = Whole("expert_tensor_parallel_size", "parallelism.expert_tp")
CONTEXT_METHOD = Word(
    "cp_comm_type", "parallelism.cp_method", {"p2p": "ring", "all_gather": "all_gather", "a2a": "ulysses"}
)
SEQUENCE = Flag("sequence_parallel", "parallelism.sequence_parallel")
TENSOR_OVERLAP = Flag("tp_comm_overlap", "parallelism.tp_overlap")
STRATEGY = Word(
    "data_parallel_sharding_strategy",
    "parallelism.data.stage",
    {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3},
)
"""ZeRO's stage in Megatron FSDP."""

KEYS: tuple[Key, ...] = (
    *(*SIZES, NEXT_TOKENS, *ACTIVATIONS, NORMALIZATION, POSITIONS, BACKEND, UNTIED, UNBIASED, QKV_BIAS, QK_NORM),
    *(COUNT, *EXPERTS, ROUTER_BIAS, CAPACITY, PADDED, OVERLAP_BATCH, OVERLAP_SHARED, *LATENT),
    *(MICRO_BATCH, BATCH, OPTIMIZER, ON_HOST, HOST_SHARE, HOST_OVERLAP),
    *(*DEGREES, EXPERT_TENSOR, CONTEXT_METHOD, SEQUENCE, TENSOR_OVERLAP, STRATEGY),
)
"""All of them."""

MODULES = {
    "core_attn": "attention",
    "layernorm": "norm",
    "mla_up_proj": "mla_up",
    "mlp": "mlp",
    "moe": "experts",
    "moe_act": "swiglu",
}
"""Operators of ``training.recompute`` by their names in ``--recompute-modules``."""
