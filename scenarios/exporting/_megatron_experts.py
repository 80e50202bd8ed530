"""Experts and latent attention as arguments of Megatron-LM, by the rules of its ``validate_args``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import groupby

from scenarios.exporting._launch import Launch
from scenarios.importing.formats._megatron_experts import EXPERTS, LATENT
from workloads.specification import TransformerSpecification

LOSS = 0.01
"""``--moe-aux-loss-coeff`` for a loss of unknown weight, that of its examples (core/transformer/moe/README.md)."""


def latent(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    """Yield the sizes of latent attention, if the model has it."""
    if model.kv_lora_rank is None:
        return
    yield "--multi-latent-attention --qk-layernorm"
    yield from (f"{flag(name)} {value}" for name, key in LATENT.items() if (value := getattr(model, key)))


def experts(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    """Yield the mixture of experts, if the model has one."""
    if not model.num_experts:
        return
    if model.moe_shared_expert_gate:
        raise run.error("model.moe_shared_expert_gate", "is not written for Megatron-LM")
    yield f"--num-experts {model.num_experts}"
    for name, key in EXPERTS.items():
        value = getattr(model, key)
        if (value and value != type(model).model_fields[key].default) or name == "moe_router_topk":
            yield f"{flag(name)} {value}"
    yield from _layers(model)
    if model.moe_router_bias:
        yield "--moe-router-score-function sigmoid --moe-router-enable-expert-bias"
    yield f"--moe-router-load-balancing-type {'aux_loss' if model.moe_aux_loss else 'none'}"
    if model.moe_aux_loss:
        yield f"--moe-aux-loss-coeff {LOSS}"
    if model.capacity_factor != "dropless":
        yield f"--moe-expert-capacity-factor {model.capacity_factor:g}"
    if model.pad_to_capacity:
        yield "--moe-pad-expert-input-to-capacity"
    yield "--moe-grouped-gemm"
    yield from _exchange(run)


def _layers(model: TransformerSpecification) -> Iterator[str]:
    """Yield which layers have experts; a pattern has an entry for each layer."""
    given, count = model.moe_layer_freq, model.num_layers
    pattern = given if isinstance(given, list) else [1, *[0] * (given - 1)]
    layers = [0 if i < model.first_k_dense_replace else pattern[i % len(pattern)] for i in range(count)]
    if all(layers):
        return
    if isinstance(given, int) and not model.first_k_dense_replace:
        yield f"--moe-layer-freq {given}"
    else:
        runs = "+".join(f"[{value}]*{len(list(group))}" for value, group in groupby(layers))
        yield f"--moe-layer-freq {shlex.quote(f'({runs})')}"


def _exchange(run: Launch) -> Iterator[str]:
    """Yield how tokens go to their experts, and what runs beside."""
    parallelism = run.scenario.specification.parallelism
    if parallelism.expert_tp is not None:
        yield f"--expert-tensor-parallel-size {parallelism.expert_tp}"
    if parallelism.ep == 1:
        return
    if run.tp > 1 and not parallelism.sequence_parallel:
        raise run.error("parallelism.ep", "Megatron-LM wants sequence_parallel: true with tensor parallelism")
    if parallelism.dispatch_precision != "model":
        raise run.refuse("parallelism.dispatch_precision", "Megatron-LM", "model")
    yield f"--expert-model-parallel-size {parallelism.ep}"
    if parallelism.ep_domain:
        yield "--moe-token-dispatcher-type flex --moe-enable-deepep"
    else:
        yield "--moe-token-dispatcher-type alltoall"
    if parallelism.moe_overlap == "shared_experts":
        yield "--moe-shared-expert-overlap"
    elif parallelism.moe_overlap == "batch":
        if run.training.recompute_method == "full":
            raise run.error("parallelism.moe_overlap", "Megatron-LM overlaps no micro-batches with recompute: full")
        if run.pp > 1 and parallelism.stages_per_rank == 1:
            raise run.error("parallelism.moe_overlap", "Megatron-LM wants virtual stages for it; schedule: interleaved")
        yield "--overlap-moe-expert-parallel-comm"


def flag(name: str) -> str:
    """Return the flag of an argument.

    >>> flag("moe_router_topk")
    '--moe-router-topk'
    """
    return f"--{name.replace('_', '-')}"
