"""Experts and latent attention as arguments of Megatron-LM, by the rules of its ``validate_args``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from clustersim.scenarios.exchange import megatron_keys as keys
from clustersim.scenarios.exchange.export import Launch
from clustersim.scenarios.exchange.program_keys import Key, argument
from clustersim.workloads.architectures.transformer_keys import TransformerSpecification

LOSS = 0.01
"""``--moe-aux-loss-coeff`` for a loss of unknown weight, that of its examples (core/transformer/moe/README.md)."""


def latent(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    """Yield the sizes of latent attention, if the model has it."""
    if model.kv_lora_rank is None:
        return
    yield "--multi-latent-attention --qk-layernorm"
    for size in keys.LATENT:
        yield from argument(size, value_of(model, size) or None)


def experts(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    """Yield the mixture of experts, if the model has one."""
    if not model.num_experts:
        return
    if model.moe_shared_expert_gate:
        raise run.error("model.moe_shared_expert_gate", "is not written for Megatron-LM")
    yield from argument(keys.COUNT, model.num_experts)
    for size in keys.EXPERTS:
        value = value_of(model, size)
        if (value and value != default_of(model, size)) or size == keys.TOPK:
            yield from argument(size, value)
    yield from _layers(model)
    for bias in argument(keys.ROUTER_BIAS, model.moe_router_bias):
        yield f"--moe-router-score-function sigmoid {bias}"
    yield f"--moe-router-load-balancing-type {'aux_loss' if model.moe_aux_loss else 'none'}"
    if model.moe_aux_loss:
        yield f"--moe-aux-loss-coeff {LOSS}"
    yield from argument(keys.CAPACITY, model.capacity_factor)
    yield from argument(keys.PADDED, model.pad_to_capacity)
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
    yield from argument(keys.EXPERT_TENSOR, parallelism.expert_tp)
    if parallelism.ep == 1:
        return
    if run.tp > 1 and not parallelism.sequence_parallel:
        raise run.error("parallelism.ep", "Megatron-LM wants sequence_parallel: true with tensor parallelism")
    if parallelism.dispatch_precision != "model":
        raise run.refuse("parallelism.dispatch_precision", "Megatron-LM", "model")
    yield from argument(keys.EXPERT, parallelism.ep)
    if parallelism.ep_domain:
        yield "--moe-token-dispatcher-type flex --moe-enable-deepep"
    else:
        yield "--moe-token-dispatcher-type alltoall"
    yield from argument(keys.OVERLAP_SHARED, parallelism.moe_overlap)
    if parallelism.moe_overlap == "batch":
        if run.training.recompute_method == "full":
            raise run.error("parallelism.moe_overlap", "Megatron-LM overlaps no micro-batches with recompute: full")
        if run.pp > 1 and parallelism.stages_per_rank == 1:
            raise run.error("parallelism.moe_overlap", "Megatron-LM wants virtual stages for it; schedule: interleaved")
    yield from argument(keys.OVERLAP_BATCH, parallelism.moe_overlap)


def value_of(model: TransformerSpecification, key: Key) -> Any:
    """Return the value of *key* in *model*."""
    return getattr(model, key.key.rpartition(".")[2])


def default_of(model: TransformerSpecification, key: Key) -> Any:
    """Return the default of *key*."""
    return type(model).model_fields[key.key.rpartition(".")[2]].default
