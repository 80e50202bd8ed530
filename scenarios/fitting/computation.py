"""The parameters of computation: a set for a type of GPU, and one for each software stack that launches on it."""

from __future__ import annotations

from scenarios.fitting.parameter import Parameter

A100 = ("topologies.gpus.a100_40gb", "topologies.gpus.a100_80gb")
"""One type of GPU with two sizes of memory: they share all that is fitted."""


def _of(files: tuple[str, ...], key: str) -> tuple[str, ...]:
    return tuple(f"{file}:{key}" for file in files)


def of_gpu(name: str, files: tuple[str, ...], *, matmul: float = 0.75) -> tuple[Parameter, ...]:
    """Those of the GPU *name*, which land in *files*; *matmul* is where the share of its peak begins."""
    return (
        Parameter(
            f"{name}.matmul_efficiency",
            matmul,
            0.3,
            0.95,
            "",
            "share of the peak that long products of full waves reach",
            _of(files, "matmul_efficiency"),
        ),
        Parameter(
            f"{name}.k_half",
            64.0,
            4.0,
            512.0,
            "elements",
            "inner dimension at which a product reaches half of that",
            _of(files, "k_half"),
            # a tile is filled and emptied as long as a few of its inner steps of 32 take (CUTLASS, "Efficient GEMM")
            spread=0.5,
        ),
        Parameter(
            f"{name}.memory_efficiency",
            0.88,
            0.3,
            0.98,
            "",
            "share of the memory's bandwidth that memory-bound kernels reach",
            _of(files, "memory_efficiency"),
            # copies of 100 MB reach 0.9 (Calculon, systems/a100_80g.json); kernels that compute on the way, less
            spread=0.07,
        ),
        Parameter(
            f"{name}.attention_efficiency",
            0.45,
            0.05,
            0.95,
            "",
            "share of the peak that the products of fused attention reach",
            _of(files, "attention_efficiency"),
            # kernels of several generations: 30 to 50 % of the A100's peak forward, 70 % at best (arXiv:2307.08691,
            # section 4.1)
            spread=0.25,
        ),
        Parameter(
            f"{name}.attention_backward",
            0.25,
            0.05,
            0.95,
            "",
            "the same in its backward pass",
            _of(files, "attention_backward"),
        ),
        Parameter(
            f"{name}.spread",
            0.015,
            0.002,
            0.06,
            "",
            "coefficient of variation of the speed of products among GPUs",
            _of(files, "spread"),
            # Sinha et al. 2022 (arXiv:2208.11035): 8 % between GPUs of one cluster, a few standard deviations
            spread=0.7,
        ),
    )


def _stack(
    name: str, key: str, start: float, low: float, high: float, meaning: str, spread: float | None = None
) -> Parameter:
    lands = tuple(f"workloads.software.{one}:{key}" for one in (name, *ALIKE.get(name, ())))
    return Parameter(f"{name}.{key}", start, low, high, "s", meaning, lands, spread=spread)


ALIKE = {
    "megatron": ("megatron_2021", "megatron_core"),
    "megatron_deepspeed": ("megatron_deepspeed_2021",),
    "fsdp": ("fsdp_sdpa",),
}
"""Entries of stacks that differ in habits, not in what the host takes, and share what is fitted."""

# a step's host work is tens of milliseconds, a message's a synchronisation and some ten launches: first estimates
STACKS = (
    _stack("megatron", "exchange", 4e-4, 2e-5, 3e-3, "lost with each message that a pipeline stage waits for", 0.7),
    _stack("megatron", "step", 4e-2, 1e-3, 0.5, "host time of each optimizer step beside its kernels", 0.7),
    _stack("megatron_deepspeed", "launch", 4e-5, 5e-6, 2e-4, "host time to launch a kernel that is priced"),
    _stack("megatron_deepspeed", "step", 8e-2, 1e-3, 0.5, "host time of each optimizer step beside its kernels", 0.7),
    _stack("fsdp", "step", 4e-2, 1e-3, 0.5, "host time of each optimizer step beside its kernels", 0.7),
)

PARAMETERS = (*of_gpu("a100", A100), *STACKS)
"""What the published runs on A100 tell."""
