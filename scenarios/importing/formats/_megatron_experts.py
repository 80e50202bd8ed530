"""Experts and latent attention in arguments of Megatron-LM: the model, and how tokens go to experts."""

from __future__ import annotations

from scenarios.importing.facts import Facts
from scenarios.importing.formats import _megatron_keys as keys
from scenarios.importing.formats._megatron_arguments import Arguments

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
    for size in keys.EXPERTS:
        arguments.take(facts, size)
    if keys.TOPK.key not in facts.found:
        arguments.give(facts, keys.TOPK.key, 2, keys.TOPK.flag)
    _layers(arguments, facts)
    arguments.take(facts, keys.ROUTER_BIAS)
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
    arguments.take(facts, keys.CAPACITY)
    if keys.PADDED.read(arguments) and keys.CAPACITY.read(arguments) is None:
        raise arguments.error(keys.PADDED.flag, "Megatron wants --moe-expert-capacity-factor with it")
    arguments.take(facts, keys.PADDED)


def _exchange(arguments: Arguments, facts: Facts) -> None:
    """Read how tokens go to their experts, and what runs beside."""
    dispatcher = arguments.word("moe_token_dispatcher_type")
    deep = arguments.flag("moe_enable_deepep")
    if deep and dispatcher != "flex":
        raise arguments.error("moe_enable_deepep", "Megatron wants --moe-token-dispatcher-type flex with it")
    shared, batch = keys.OVERLAP_SHARED, keys.OVERLAP_BATCH
    if (keys.EXPERT.read(arguments) or 1) == 1:
        arguments.ignore([shared.flag, batch.flag])
        return
    if deep:
        arguments.give(facts, "run.expert_domains", True, "moe_enable_deepep")
    if dispatcher in (None, "allgather"):
        how = "allgather" if dispatcher else "allgather, its default,"
        facts.remarks.append(f"--moe-token-dispatcher-type {how} is simulated as alltoall: tokens go to their experts")
    if batch.read(arguments):
        arguments.take(facts, batch)
    elif shared.read(arguments) and arguments.whole("moe_shared_expert_intermediate_size", least=0):
        arguments.take(facts, shared)


def read_latent(arguments: Arguments, facts: Facts) -> bool:
    """Read multi-head latent attention; return whether there is one."""
    if not arguments.flag("multi_latent_attention"):
        return False
    for size in keys.LATENT:
        arguments.take(facts, size)
    if keys.LATENT_RANK.key not in facts.found:
        arguments.give(facts, keys.LATENT_RANK.key, DEFAULT_LATENT_RANK, keys.LATENT_RANK.flag)
    if not arguments.flag("qk_layernorm"):
        facts.remarks.append("the norms of latent vectors are simulated, which Megatron has with --qk-layernorm")
    # heads are those of the latent sizes
    arguments.ignore(["kv_channels", "group_query_attention", "num_query_groups"])
    return True
