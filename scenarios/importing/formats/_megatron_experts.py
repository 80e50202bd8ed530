"""Experts and latent attention in arguments of Megatron-LM: the model, and how tokens go to experts."""

from __future__ import annotations

from scenarios.importing.facts import Facts
from scenarios.importing.formats._megatron_arguments import Arguments

EXPERTS = {
    "moe_router_topk": "moe_router_topk",
    "moe_ffn_hidden_size": "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
    "moe_router_num_groups": "n_group",
    "moe_router_group_topk": "topk_group",
}
"""Keys of a mixture of experts by argument."""

LATENT = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}
"""Keys of latent attention by argument."""

DEFAULT_LATENT_RANK = 32
"""``--kv-lora-rank`` by default."""

COUNTS = ("num_experts", "num_moe_experts")
"""The number of experts: Megatron-LM's argument, and that of NeMo and Bridge."""


def read_experts(arguments: Arguments, facts: Facts) -> None:
    """Read a mixture of experts, if there is one."""
    key = next((key for key in COUNTS if arguments.path(key)), COUNTS[0])
    experts = arguments.whole(key, 0) or 0
    if experts < 2:
        return
    arguments.give(facts, "model.num_experts", experts, key)
    for argument, name in EXPERTS.items():
        arguments.give(facts, f"model.{name}", arguments.whole(argument, least=0), argument)
    if "model.moe_router_topk" not in facts.found:
        arguments.give(facts, "model.moe_router_topk", 2, "moe_router_topk")
    _layers(arguments, facts)
    if arguments.flag("moe_router_enable_expert_bias"):
        arguments.give(facts, "model.moe_router_bias", True, "moe_router_enable_expert_bias")
    _loss(arguments, facts)
    _capacity(arguments, facts)
    _exchange(arguments, facts)


def _layers(arguments: Arguments, facts: Facts) -> None:
    """Read which layers have experts."""
    key = "moe_layer_freq"
    pattern = arguments.pattern(key)
    if not isinstance(pattern, list):
        arguments.give(facts, f"model.{key}", pattern, key)
        return
    dense = pattern.index(1) if 1 in pattern else 0
    if len(pattern) == arguments.whole("num_layers") and all(pattern[dense:]):
        arguments.give(facts, "model.first_k_dense_replace", dense, key)
    else:
        arguments.give(facts, f"model.{key}", pattern, key)


def _loss(arguments: Arguments, facts: Facts) -> None:
    """Read whether a loss for equal loads is computed: there is none with the default coefficient of 0."""
    kinds = arguments.several("moe_router_load_balancing_type") or ["aux_loss"]
    try:
        coefficients = [float(one) for one in arguments.several("moe_aux_loss_coeff")]
    except ValueError:
        raise arguments.error("moe_aux_loss_coeff", "must be a number, or several") from None
    used = any(kind.endswith("aux_loss") for kind in kinds) and any(coefficients)
    key = "moe_aux_loss_coeff" if coefficients else "moe_router_load_balancing_type"
    arguments.give(facts, "model.moe_aux_loss", used, key, "" if coefficients else "moe_aux_loss_coeff is 0 by default")


def _capacity(arguments: Arguments, facts: Facts) -> None:
    """Read how many tokens an expert takes."""
    factor = arguments.number("moe_expert_capacity_factor")
    arguments.give(facts, "model.capacity_factor", factor, "moe_expert_capacity_factor")
    if arguments.flag("moe_pad_expert_input_to_capacity"):
        key = "moe_pad_expert_input_to_capacity"
        if factor is None:
            raise arguments.error(key, "Megatron wants --moe-expert-capacity-factor with it")
        arguments.give(facts, "model.pad_to_capacity", True, key)


def _exchange(arguments: Arguments, facts: Facts) -> None:
    """Read how tokens go to their experts, and what runs beside."""
    dispatcher = arguments.word("moe_token_dispatcher_type")
    deep = arguments.flag("moe_enable_deepep")
    if deep and dispatcher != "flex":
        raise arguments.error("moe_enable_deepep", "Megatron wants --moe-token-dispatcher-type flex with it")
    if (arguments.whole("expert_model_parallel_size") or 1) == 1:
        arguments.ignore(["moe_shared_expert_overlap", "overlap_moe_expert_parallel_comm"])
        return
    if deep:
        arguments.give(facts, "run.expert_domains", True, "moe_enable_deepep")
    if dispatcher in (None, "allgather"):
        how = "allgather" if dispatcher else "allgather, its default,"
        facts.remarks.append(f"--moe-token-dispatcher-type {how} is simulated as alltoall: tokens go to their experts")
    shared, batch = "moe_shared_expert_overlap", "overlap_moe_expert_parallel_comm"
    if arguments.flag(batch):
        arguments.give(facts, "parallelism.moe_overlap", "batch", batch)
    elif arguments.flag(shared) and arguments.whole("moe_shared_expert_intermediate_size", least=0):
        arguments.give(facts, "parallelism.moe_overlap", "shared_experts", shared)


def read_latent(arguments: Arguments, facts: Facts) -> bool:
    """Read multi-head latent attention; return whether there is one."""
    if not arguments.flag("multi_latent_attention"):
        return False
    for argument, name in LATENT.items():
        arguments.give(facts, f"model.{name}", arguments.whole(argument), argument)
    if "model.kv_lora_rank" not in facts.found:
        arguments.give(facts, "model.kv_lora_rank", DEFAULT_LATENT_RANK, "kv_lora_rank")
    if not arguments.flag("qk_layernorm"):
        facts.remarks.append("the norms of latent vectors are simulated, which Megatron has with --qk-layernorm")
    # heads are those of the latent sizes
    arguments.ignore(["kv_channels", "group_query_attention", "num_query_groups"])
    return True
