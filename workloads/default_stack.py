"""The software stack of a scenario that names none: by the parallelism, the kind of model and the type of GPU."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.accelerator import Accelerator

AUTO = "auto"
"""In place of the name of a stack: take the default."""

BEYOND_HOPPER = ("h100", "h200", "h800", "gh200", "b200", "b100", "gb200")
"""Types of GPU for whose tensor cores cuDNN has fused attention of its own (Shah et al. 2024, arXiv:2407.08608)."""

LIKE_DDP = ("ddp", "diloco", "horovod", "local_sgd")
"""Methods with whole replicas whose steps are those of torch with DistributedDataParallel."""


def default_stack(method: str, degrees: Mapping[str, int], gpu: Accelerator, *, transformer: bool) -> tuple[str, str]:
    """Return (stack, reason) for a *method* of data parallelism and the *degrees* of the other parallelisms.

    A model that is no *transformer*, or a GPU without tensor cores' data, is trained by torch itself: Megatron-LM and
    DeepSpeed's fused kernels are for transformers. FlashAttention-2 needs Ampere or later (github.com/Dao-AILab/
    flash-attention, README.md), which is recognised by bf16.

    >>> default_stack("ddp", {"tp": 8}, Accelerator(name="h100", sms=132), transformer=True)[0]
    'megatron_core'
    """
    recent = gpu.name.partition("_")[0] in BEYOND_HOPPER
    ampere = isinstance(gpu.peak_flops, Mapping) and "bf16" in gpu.peak_flops
    if transformer and gpu.sms:
        divided = " and ".join(axis for axis, degree in degrees.items() if axis != "dp" and degree > 1)
        if divided:
            stack = "megatron_core" if recent else "megatron" if ampere else "megatron_2021"
            return stack, f"default for {divided} on {gpu.name}"
        if method == "zero":
            return "megatron_deepspeed", f"default for zero on {gpu.name}"
        if method == "fsdp":
            return ("fsdp_sdpa" if ampere else "fsdp"), f"default for fsdp on {gpu.name}"
        if method in LIKE_DDP and ampere:
            return "ddp_sdpa", f"default for {method} on {gpu.name}"
    return ("fsdp" if method == "fsdp" else "ddp"), f"default for {method} on {gpu.name}"
