"""Gradients of a micro-batch are added to those of the micro-batches before it: a pass over the memory of all weights.

The traffic depends on where gradients are accumulated. Autograd adds to a tensor of the same type (torch,
csrc/autograd/functions/accumulate_grad.h). Where 16-bit gradients are accumulated in fp32, Megatron-LM adds each to a
buffer in a hook (megatron/model/distributed.py, ``_make_param_hook``); DeepSpeed casts it first
(runtime/bf16_optimizer.py, ``_update_hp_grad``). Megatron-LM since 2022 does so within the product
(``gradient_accumulation_fusion``). Under torch's autocast weights are fp32: each forward pass casts them to 16 bits
once (ATen/autocast_mode.cpp, ``cached_cast``), and autograd casts their gradients back and adds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.kernel import BYTES, memory_bound
from simulator.operation import Operation
from simulator.schedule import Compute, Op, Program, Schedule
from workloads.model import Model

ACCUMULATIONS = ("fused", "added", "cast", "autocast")
"""How 16-bit gradients are accumulated in fp32: by the product, by an addition, after a cast, or by autograd."""

FP32 = 4
ACCUMULATION = Operation("gradient accumulation", "elementwise")


def accumulated_bytes(how: str, precision: str, gradient_dtype: str, micro_batches: int) -> float:
    """Bytes that are read and written for each parameter and micro-batch, the mean over *micro_batches*.

    Autograd does not add the gradients of the first micro-batch. A buffer in fp32 is set to zero once a step
    (``zero_grad_buffer``, ``clear_hp_grads``).

    >>> accumulated_bytes("cast", "bf16", "fp32", 8), accumulated_bytes("cast", "fp16", "fp16", 4)
    (18.5, 4.5)
    """
    width = BYTES[precision]
    if BYTES[gradient_dtype] == width:
        return 0.0 if how == "fused" else 3.0 * width * (micro_batches - 1) / micro_batches
    if how == "autocast":
        return 2.0 * (width + FP32) + 3.0 * FP32 * (micro_batches - 1) / micro_batches
    added = {"fused": 0.0, "added": width + 2.0 * FP32, "cast": (width + FP32) + 3.0 * FP32}
    return added[how] + FP32 / micro_batches


def accumulated(schedule: Schedule, model: Model, nbytes: float) -> Schedule:
    """*schedule* with *nbytes* of traffic for each trained parameter of a layer at the end of its backward passes.

    *model* has its layers as one rank holds them. The host's time for it is part of what a stack takes to launch the
    kernels of a backward pass.
    """
    if not nbytes:
        return schedule
    counts = {layer.name: layer.trainable_parameters for layer in model.layers}
    traffic = {name: nbytes * count for name, count in counts.items() if count}
    return schedule.map_programs(lambda program: _accumulated(program, traffic))


def _accumulated(program: Program, traffic: dict[str, float]) -> Program:
    def change(op: Op) -> Iterator[Op]:
        if isinstance(op, Compute) and _completes(op) and op.layer in traffic:
            op = replace(op, kernels=(*op.kernels, memory_bound(traffic[op.layer], launches=0, operation=ACCUMULATION)))
        yield op

    return program.map_ops(change)


def _completes(op: Op) -> bool:
    """True if *op* ends the backward pass of its layer: it has the name of the layer."""
    return op.action is not None and op.action.phase in "BW" and op.name == f"{op.action}.{op.layer}"
