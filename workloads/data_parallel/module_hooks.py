"""Host time of the hooks by which DeepSpeed's ZeRO-3 gathers and releases parameters, module by module.

Every module of a model has four hooks (deepspeedai/DeepSpeed, runtime/zero/parameter_offload.py,
``_register_hooks_recursively``): before and after its forward pass, and autograd functions around its backward pass.
Each of them looks up which parameters to gather, to await, to gather ahead and to release
(runtime/zero/partitioned_param_coordinator.py, ``fetch_sub_module``, ``release_sub_module``), also where the module has
none, and on a single rank. A parameter that is gathered is allocated, viewed and freed by operators of its own, and a
gradient is copied, divided and partitioned (runtime/zero/stage3.py, ``__add_grad_to_ipg_bucket``,
``partition_grads``). The hooks run on the thread that launches kernels, so that they add to its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import Operation, memory_bound
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.simulator.schedule.program import Program
from clustersim.workloads.operators.model import Layer

HOOKS = Operation("hooks of ZeRO-3", "elementwise")

PASSES = "FRBI"
"""Phases in which modules run: forward, again, backward."""


def with_module_hooks(program: Program, layers: Sequence[Layer], software: Software, *, again: bool = False) -> Program:
    """*program* with the operators of the hooks of *software* at the begin of each pass of one of *layers*.

    *again*: passes of the program stand for those of layers that are computed again, which it does not have itself.
    """
    by_name = {layer.name: layer for layer in layers}
    kept = by_name if again else {op.layer for op in program.computations() if op.action and op.action.phase == "R"}
    added: dict[str, int] = {}
    for template, _ in program.templates():
        begun = set()
        for op in template:
            if not (isinstance(op, Compute) and op.kernels and op.action and op.layer in by_name):
                continue
            key = op.action, op.layer
            if key not in begun:
                begun.add(key)
                added[op.name] = hook_operators(by_name[op.layer], op.action.phase, software, kept=op.layer in kept)

    def change(op: Op) -> list[Op]:
        assert isinstance(op, Compute)
        hooks = memory_bound(0.0, launches=0, operators=added[op.name], operation=HOOKS)
        return [replace(op, kernels=(hooks, *op.kernels))]

    return program.map_ops(change, {name for name, count in added.items() if count})


def hook_operators(layer: Layer, phase: str, software: Software, *, kept: bool) -> int:
    """Return the operators that take as long as the hooks of *layer* in *phase*; *kept*: its backward pass finds the
    parameters gathered by its recomputation.

    Matrices alone are gathered: vectors are below DeepSpeed's ``stage3_param_persistence_threshold``. A bucket of
    gradients has as many elements as a square of the hidden size, so that most matrices fill one, and adapters share it
    (Hugging Face Transformers, integrations/deepspeed.py, ``trainer_config_finalize``, ``reduce_bucket_size``).
    """
    matrices = [tensor for tensor in layer.tensors if tensor.rows]
    bucket = max((min(one.rows, one.columns) for one in matrices), default=1) ** 2
    modules = software.module_hooks * layer.modules if phase in PASSES else 0
    fetched = phase in "FR" or (phase in "BI" and not kept)
    reduced = sum(min(1.0, one.count / bucket) for one in matrices if one.trainable) if phase in "BW" else 0.0
    return modules + software.fetch_hooks * len(matrices) * fetched + round(software.gradient_hooks * reduced)
