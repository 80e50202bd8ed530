"""The software stack of a scenario that names none: by framework, kind of model, year and generation of the GPU.

The keys of a scenario tell the framework: `fsdp` is torch's, stages 2 and 3 of ZeRO are DeepSpeed's alone, stage 1 is
also Megatron-LM's distributed optimizer, tensor, pipeline, context and expert parallelism of anything else are
Megatron-LM's, and adapters on whole replicas, or with DeepSpeed, are those of Hugging Face's PEFT. Stages 2 and 3 are
driven by Hugging Face's Trainer since 2023. So a degree alone never changes the framework of `fsdp` or `zero`. The
generation of the accelerator tells the year, unless the scenario does; the scenario may tell the framework, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from clustersim.simulator.hardware.accelerator import Accelerator

AUTO = "auto"
"""In place of the name of a stack: take the default."""

TRANSFORMER_ENGINE = (
    *("h100", "h200", "h800", "h20", "gh200", "b100", "b200", "b300", "gb200", "gb300"),
    *("mi300x", "mi325x", "mi350x", "mi355x"),
)
"""Types of GPU on which Megatron-LM runs with Transformer Engine and fused attention made for them: cuDNN's for Hopper
and Blackwell (Shah et al. 2024, arXiv:2407.08608), that of Composable Kernel for AMD's (ROCm/TransformerEngine,
README.md, fused attention backends)."""

LIKE_DDP = ("ddp", "diloco", "horovod", "local_sgd")
"""Methods with whole replicas whose steps are those of torch with DistributedDataParallel."""

BLACKWELL_OR_LATER = ("b100", "b200", "b300", "gb200", "gb300")
"""Types of GPU that came in 2025. NVIDIA's recipes for them capture the layers of most models as CUDA graphs, those for
Hopper of hardly any (NVIDIA-NeMo, scripts/performance/recommended_model_configs, model_configs_b200.csv and
model_configs_h100.csv, cuda_graphs: 19 of 36 and 2 of 40 rows; the others hide launches behind large kernels)."""

VERSIONS: Mapping[str, tuple[tuple[int, str], ...]] = {
    "ddp": ((0, "ddp"), (2024, "ddp_sdpa"), (2026, "ddp_sdpa_2026")),
    "ddp_sdpa": ((0, "ddp_sdpa"), (2026, "ddp_sdpa_2026")),
    "ddp_compile": ((0, "ddp_compile"), (2026, "ddp_compile_2026")),
    "fsdp": ((0, "fsdp_2023"), (2023, "fsdp"), (2024, "fsdp_sdpa"), (2026, "fsdp_sdpa_2026")),
    "fsdp_sdpa": ((0, "fsdp_sdpa"), (2026, "fsdp_sdpa_2026")),
    "fsdp_compile": ((0, "fsdp_compile"), (2026, "fsdp_compile_2026")),
    "megatron": ((0, "megatron_2021"), (2022, "megatron_2023"), (2024, "megatron")),
    "megatron_core": (
        (0, "megatron_2021"),
        (2022, "megatron_2023"),
        (2023, "megatron_core"),
        (2025, "megatron_core_2025"),
    ),
    "deepspeed": ((0, "megatron_deepspeed_2021"), (2022, "megatron_deepspeed"), (2023, "deepspeed")),
    "zero": ((0, "megatron_deepspeed_2021"), (2022, "megatron_deepspeed"), (2023, "huggingface_deepspeed")),
    "huggingface": ((0, "huggingface"), (2025, "huggingface_2025")),
}
"""Stacks of a framework by the first year of which they are. torch has FlashAttention-2 since 2.2 (January 2024), on
recent GPUs cuDNN's attention since 2.11 (2026), and checkpoints that stop early since 2.1, Megatron Core is of 2023; of
the others see their entries."""

TORCH = 2023
"""The last year of torch before its attention became FlashAttention-2."""

BEFORE_AMPERE = {"megatron": 2021, "deepspeed": 2022, "zero": 2022}
"""The year of a framework on GPUs without bf16, which FlashAttention-2 does not know; of torch it is `TORCH`."""

FRAMEWORKS = ("torch", "torch_compile", "jax")
"""Frameworks that a scenario may name in place of a stack: the method of data parallelism tells which stack it is."""

OTHERS: Mapping[str, tuple[str, ...]] = {
    "ddp_sdpa": ("ddp_compile",),
    "ddp_sdpa_2026": ("ddp_compile_2026",),
    "fsdp_sdpa": ("fsdp_compile",),
    "fsdp_sdpa_2026": ("fsdp_compile_2026",),
    "huggingface": ("ddp_sdpa",),
    "huggingface_2025": ("ddp_sdpa",),
    "huggingface_deepspeed": ("deepspeed", "fsdp_sdpa"),
    "deepspeed": ("fsdp_sdpa", "megatron_deepspeed"),
    "megatron_2021": ("megatron_deepspeed",),
    "megatron": ("megatron_deepspeed", "fsdp_sdpa"),
    "megatron_core": ("megatron", "fsdp_compile"),
    "megatron_core_2025": ("megatron_core", "fsdp_compile"),
    "xla": ("ideal",),
    "xla_gpu": ("xla",),
    "gaudi": ("ideal",),
}
"""By stack, the others with which such a scenario is trained too."""

ON_GPUS = frozenset(
    {
        *VERSIONS,
        *(stack for versions in VERSIONS.values() for _, stack in versions),
        *(
            "ddp_compile",
            "fsdp_compile",
            "huggingface",
            "huggingface_deepspeed",
            "megatron_deepspeed",
            "tensorflow",
            "xla_gpu",
        ),
    }
)
"""Stacks whose kernels are CUDA's or ROCm's: those of PyTorch on GPUs, of any year."""


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
    adapters: bool = False,
    framework: str = AUTO,
    year: int | None = None,
) -> StackChoice:
    """Return the stack for a *method* of data parallelism, its *stage* if it is ZeRO, and the *degrees* of the others.

    A model that is no *transformer*, or a GPU without tensor cores' data, is trained by torch itself: Megatron-LM and
    DeepSpeed's fused kernels are for transformers. FlashAttention-2 needs Ampere or later (github.com/Dao-AILab/
    flash-attention, README.md), which is recognised by bf16. *adapters*: low-rank ones are trained, of a frozen model.
    *framework*: one of `FRAMEWORKS`, or auto; *year*: that of the software, by default that of the *gpu*.

    >>> default_stack("ddp", {"tp": 8}, Accelerator(name="h100", sms=132), transformer=True).stack
    'megatron_core'
    """
    keys, family = _family(method, degrees, gpu, transformer=transformer, stage=stage, adapters=adapters)
    if framework != AUTO and own_stack(gpu) is None:
        family = _of_framework(framework, method, stage)
    # of models without attention, and of methods that torch has no package for, nothing is of a later year
    lasting = not (transformer and gpu.sms) or (framework == AUTO and family == "ddp" and method not in LIKE_DDP)
    stack = version_of(family, year or (TORCH if lasting else _year_of(family, gpu)))
    told = "default" if framework == AUTO else framework
    return StackChoice(stack, f"{told} for {keys} on {gpu.name}{f' in {year}' if year else ''}", OTHERS.get(stack, ()))


def version_of(stack: str, year: int | None) -> str:
    """Return the *stack* of a framework of that *year*; itself if it has no versions, or no year is given.

    >>> version_of("megatron", 2022), version_of("xla", 2022), version_of("fsdp", None)
    ('megatron_2023', 'xla', 'fsdp')
    """
    if year is None:
        return stack
    return next((name for since, name in VERSIONS.get(stack, ())[::-1] if year >= since), stack)


OWN_STACKS: Mapping[str, str] = {"tpu": "xla", "trainium": "xla", "gaudi": "gaudi"}
"""Stacks of accelerators that run no CUDA or ROCm, by the beginning of their names. XLA compiles for TPUs, and it is
the front end of Neuron's compiler for Trainium (AWS Neuron documentation, "Neuron Compiler")."""


def own_stack(accelerator: Accelerator) -> str | None:
    """Return the one stack that programs *accelerator*; None for GPUs, which many stacks program.

    >>> own_stack(Accelerator(name="tpu_v6e")), own_stack(Accelerator(name="h100"))
    ('xla', None)
    """
    return next((stack for kind, stack in OWN_STACKS.items() if accelerator.name.startswith(kind)), None)


def instead_of(stack: str, accelerator: Accelerator) -> StackChoice | None:
    """Return what *accelerator* runs in place of a *stack* of `ON_GPUS`; None if it can run that.

    PyTorch itself runs on all of them, but its step is then a program of their compilers: no kernel is launched by
    CUDA, and none of CUDA's context lies in their memory.
    """
    own = own_stack(accelerator)
    if own is None or stack not in ON_GPUS:
        return None
    return StackChoice(own, f"in place of {stack}, whose kernels {accelerator.name} cannot run", OTHERS.get(own, ()))


def _family(
    method: str, degrees: Mapping[str, int], gpu: Accelerator, *, transformer: bool, stage: int, adapters: bool
) -> tuple[str, str]:
    """Return (the keys that decide it, the framework: a key of `VERSIONS` or a stack without versions)."""
    divided = " and ".join(axis for axis, degree in degrees.items() if axis != "dp" and degree > 1)
    megatron = "megatron_core" if _is_of(gpu, TRANSFORMER_ENGINE) else "megatron"
    own = own_stack(gpu)
    if own is not None:
        return method, own
    if method == "fsdp" or not (transformer and gpu.sms):
        return method, "fsdp" if method == "fsdp" else "ddp"
    if method == "zero":
        # Megatron-LM shares the optimizer states since 2022
        states = stage < 2
        family = "huggingface_deepspeed" if adapters else "zero"
        return f"zero {stage}", megatron if states and _has_bf16(gpu) else "deepspeed" if states else family
    if divided:
        return divided, megatron
    if adapters:
        return f"{method} and adapters", "huggingface"
    return method, "ddp"


def _of_framework(framework: str, method: str, stage: int) -> str:
    """Return the family of stacks of a *framework* that the scenario names."""
    shared = method == "fsdp" or (method == "zero" and stage >= 2)
    if framework == "jax":
        return "xla" if shared else "xla_gpu"
    family = "fsdp" if shared else "ddp"
    return f"{family}_compile" if framework == "torch_compile" else family


def _year_of(family: str, gpu: Accelerator) -> int:
    """Return the year of a framework on *gpu*."""
    if not _has_bf16(gpu):
        return BEFORE_AMPERE.get(family, TORCH)
    return 2025 if _is_of(gpu, BLACKWELL_OR_LATER) else 2024


def _has_bf16(gpu: Accelerator) -> bool:
    return isinstance(gpu.peak_flops, Mapping) and "bf16" in gpu.peak_flops


def _is_of(gpu: Accelerator, types: tuple[str, ...]) -> bool:
    return gpu.name.partition("_")[0] in types
