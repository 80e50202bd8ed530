"""The parameters of computation: those of a type of GPU, and those of the software stacks that launch kernels."""

from __future__ import annotations

from scenarios.fitting.parameter import Parameter

A100 = ("topologies.gpus.a100_40gb", "topologies.gpus.a100_80gb")
"""One type of GPU with two sizes of memory: all fitted parameters are common to both."""

V100 = ("topologies.gpus.v100_16gb", "topologies.gpus.v100_32gb")


def of_gpu(name: str, files: tuple[str, ...], *, matmul: float = 0.75) -> tuple[Parameter, ...]:
    """Return the parameters of the GPU *name*, whose values go to *files*; *matmul*: start of its efficiency."""

    def parameter(
        key: str, start: float, low: float, high: float, meaning: str, spread: float | None = None, unit: str = ""
    ) -> Parameter:
        lands = tuple(f"{file}:{key}" for file in files)
        return Parameter(f"{name}.{key}", start, low, high, unit, meaning, lands, spread=spread)

    # depths, tiles and latencies of products are fitted to products (scenarios.fitting.products)
    reached = "share of the peak that long products of full waves reach"
    return (
        parameter("matmul_efficiency", matmul, 0.3, 0.95, reached),
        # copies of 100 MB reach 0.9 (Calculon, systems/a100_80g.json); kernels that compute reach less
        parameter(
            "memory_efficiency",
            0.88,
            0.3,
            0.98,
            "share of the memory's bandwidth that memory-bound kernels reach",
            0.07,
        ),
        # kernels of several generations: 30 to 50 % of the A100's peak forward, 73 % at best (arXiv:2307.08691,
        # abstract and section 4.1)
        parameter(
            "attention_efficiency",
            0.45,
            0.05,
            0.73,
            "share of the peak that the products of fused attention reach",
            0.25,
        ),
        parameter("attention_backward", 0.25, 0.05, 0.95, "the same in its backward pass"),
        # Sinha et al. 2022 (arXiv:2208.11035): 8 % between GPUs of one cluster, a few standard deviations; 3 % if only
        # three
        parameter("spread", 0.015, 0.002, 0.03, "coefficient of variation of the speed of products among GPUs", 0.7),
    )


def _stack(
    name: str, key: str, start: float, low: float, high: float, meaning: str, spread: float | None = None
) -> Parameter:
    alike = {"exchange": MESSAGES, "launch": LAUNCHES}.get(key, ALIKE.get(name, ()))
    lands = tuple(f"workloads.software.{one}:{key}" for one in (name, *alike))
    return Parameter(f"{name}.{key}", start, low, high, "s", meaning, lands, spread=spread)


ALIKE = {
    "megatron_deepspeed": ("huggingface_deepspeed",),
    "fsdp": ("fsdp_sdpa",),
}
"""Further entries of a stack that have its fitted parameters. A stack that is composed of another has those of that
one."""

MESSAGES = ("megatron_core", "megatron_deepspeed")
"""Stacks that lose as much time with each message of a pipeline as Megatron-LM."""

LAUNCHES = ("megatron_core", "megatron_deepspeed")
"""Stacks whose layers are Megatron-LM's, with the same operators and Python around a kernel."""

# first estimates: ten milliseconds of host work for a step, a few lines of Python for a tensor; as much beside the
# operators after a message as these take
STACKS = (
    _stack("megatron", "exchange", 1e-4, 1e-6, 3e-3, "lost with each message beside its operators", 1.0),
    _stack("megatron", "launch", 4e-5, 5e-6, 2e-4, "host time to launch a kernel that is priced"),
    _stack("megatron_deepspeed", "tensor", 2e-5, 1e-7, 1e-3, "of a step for each tensor beside its operators", 1.0),
    # a twentieth of the shortest published step, 0.41 s, at the most
    _stack("fsdp", "load", 1e-2, 1e-4, 0.02, "host time of each step for loading data and logging", 0.7),
)

PARAMETERS = (*of_gpu("a100", A100), *STACKS)
"""The parameters that the published runs on A100 determine."""


def _v100(key: str, start: float, low: float, high: float, meaning: str, spread: float, unit: str = "") -> Parameter:
    lands = tuple(f"{file}:{key}" for file in V100)
    return Parameter(f"v100.{key}", start, low, high, unit, meaning, lands, spread=spread)


V100_PARAMETERS = (
    _v100("matmul_efficiency", 0.75, 0.3, 0.95, "share of the fp16 peak that long products of full waves reach", 0.3),
    _v100("fp32_efficiency", 0.85, 0.3, 0.99, "the same of products in fp32", 0.3),
    _v100("convolution_efficiency", 0.75, 0.3, 0.95, "the same of convolutions in fp32", 0.3),
    _v100(
        "convolution_k_half",
        64.0,
        4.0,
        512.0,
        "inner dimension at which a convolution reaches half of it",
        0.5,
        "elements",
    ),
    _v100(
        "memory_efficiency", 0.88, 0.3, 0.98, "share of the memory's bandwidth that memory-bound kernels reach", 0.07
    ),
)
"""The parameters that published runs and layer profiles on V100 determine."""
