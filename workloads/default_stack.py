"""The software stack of a scenario that names none: by framework, kind of model and generation of the accelerator.

The keys of a scenario tell the framework: `fsdp` is torch's, stages 2 and 3 of ZeRO are DeepSpeed's alone, stage 1 is
also Megatron-LM's distributed optimizer, tensor, pipeline, context and expert parallelism of anything else are
Megatron-LM's. The generation of the accelerator tells the year. So a degree alone never changes the framework of
`fsdp` or `zero`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from simulator.accelerator import Accelerator

AUTO = "auto"
"""In place of the name of a stack: take the default."""

HOPPER_OR_LATER = ("h100", "h200", "h800", "h20", "gh200", "b100", "b200", "b300", "gb200", "gb300")
"""Types of GPU for whose tensor cores cuDNN has fused attention of its own (Shah et al. 2024, arXiv:2407.08608)."""

LIKE_DDP = ("ddp", "diloco", "horovod", "local_sgd")
"""Methods with whole replicas whose steps are those of torch with DistributedDataParallel."""

OTHERS: Mapping[str, tuple[str, ...]] = {
    "ddp": (),
    "ddp_sdpa": ("ddp_compile",),
    "fsdp": (),
    "fsdp_sdpa": ("fsdp_compile",),
    "deepspeed": ("fsdp_sdpa", "megatron_deepspeed"),
    "megatron_deepspeed": (),
    "megatron_2021": ("megatron_deepspeed",),
    "megatron": ("megatron_deepspeed", "fsdp_sdpa"),
    "megatron_core": ("megatron", "fsdp_compile"),
    "xla": ("ideal",),
}
"""By default stack, the others with which such a scenario is trained too."""


class StackChoice(NamedTuple):
    """The *stack* and the *reason* why; *others*: stacks with which such a scenario is trained too."""

    stack: str
    reason: str
    others: tuple[str, ...] = ()


def default_stack(
    method: str,
    degrees: Mapping[str, int],
    gpu: Accelerator,
    *,
    transformer: bool,
    stage: int = 0,
) -> StackChoice:
    """Return the stack for a *method* of data parallelism, its *stage* if it is ZeRO, and the *degrees* of the others.

    A model that is no *transformer*, or a GPU without tensor cores' data, is trained by torch itself: Megatron-LM and
    DeepSpeed's fused kernels are for transformers. FlashAttention-2 needs Ampere or later (github.com/Dao-AILab/
    flash-attention, README.md), which is recognised by bf16.

    >>> default_stack("ddp", {"tp": 8}, Accelerator(name="h100", sms=132), transformer=True).stack
    'megatron_core'
    """
    stack, keys = _stack(method, degrees, gpu, transformer=transformer, stage=stage)
    return StackChoice(stack, f"default for {keys} on {gpu.name}", OTHERS[stack])


def is_tpu(accelerator: Accelerator) -> bool:
    """Return whether *accelerator* is one of Google's, which only XLA programs."""
    return accelerator.name.startswith("tpu")


def _stack(
    method: str, degrees: Mapping[str, int], gpu: Accelerator, *, transformer: bool, stage: int
) -> tuple[str, str]:
    """Return (stack, the keys that decide it)."""
    ampere = isinstance(gpu.peak_flops, Mapping) and "bf16" in gpu.peak_flops
    recent = gpu.name.partition("_")[0] in HOPPER_OR_LATER
    megatron = "megatron_core" if recent else "megatron" if ampere else "megatron_2021"
    divided = " and ".join(axis for axis, degree in degrees.items() if axis != "dp" and degree > 1)
    keys, stack = method, "fsdp" if method == "fsdp" else "ddp"
    if is_tpu(gpu):
        stack = "xla"
    elif not (transformer and gpu.sms):
        pass
    elif method == "fsdp":
        stack = "fsdp_sdpa" if ampere else "fsdp"
    elif method == "zero":
        # Megatron-LM shares the optimizer states since 2022
        keys, stack = f"zero {stage}", megatron if stage < 2 else "deepspeed"
        stack = stack if ampere else "megatron_deepspeed"
    elif divided:
        keys, stack = divided, megatron
    elif method in LIKE_DDP and ampere:
        stack = "ddp_sdpa"
    return stack, keys
