"""An accelerator prices kernels; the software stack decides how fast the host can issue them.

A matrix product is cut into tiles which the streaming multiprocessors (SMs) take wave by wave, so a product that does
not fill its last wave pays for it whole (NVIDIA, "Matrix Multiplication Background User's Guide"). Other kernels are
bound by memory. An op takes a smooth maximum of the GPU's time and the host's time to launch its kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, inf, prod
from statistics import NormalDist

from simulator.errors import ClusterError
from simulator.kernel import Kernel

TILES = ((256, 128, 1.0), (128, 128, 0.95), (128, 64, 0.85), (64, 64, 0.7))
"""(m, n, efficiency relative to the largest) of the output tiles that a matrix library chooses among, each either way
round. Sizes: NVIDIA's guide, section "Tile Quantization"; it says larger tiles are more efficient and gives no number:
the efficiencies are first estimates."""


SPLIT_DEPTH = 256
"""The inner dimension below which a product is not split further. CUTLASS ("Efficient GEMM in CUDA", section
"Parallelized Reductions") splits where m and n are small and k is large, and gives no number: a first estimate."""


@dataclass(frozen=True, slots=True)
class Software:
    """What a software stack adds: *launch_seconds* of host time per kernel; *fused* elementwise kernels or not.

    The fused softmax takes heads x samples by *softmax_group*, else there is a kernel for each operator. *sharpness* q
    makes the maximum of host time h and GPU time g smooth: (h^q + g^q)^(1/q). *step_seconds*: host time of each
    optimizer step beside its kernels; *exchange_seconds*: what a pipeline stage loses with each message that it
    waits for, since the host waits too and has then to launch again. *context_bytes*: what a process takes of its GPU
    before it holds a tensor, CUDA's context and the kernels that are loaded. *async_tensor*: backward passes exchange
    tensor-parallel gradients beside the products that do not need them; *unfused_update*: what stands around an
    optimizer's update has kernels of its own; *slice_seconds*: host time for each rank's slice of each tensor, where
    ZeRO's third stage communicates lists of tensors, 0 where it has flat buffers; *flash_forward*, *flash_backward*:
    how much faster its fused attention is than the kernels that the shares of an `Accelerator` are of; *gather_ahead*:
    a sharded optimizer's parameters are gathered beside the next forward pass.

    *fp32_gradients*: the 16-bit precisions under which gradients are accumulated and reduced in fp32.
    *gradient_buffers*: what the buckets of gradients take beside them: ``copies`` of all, ``two`` buckets, or ``none``.
    *scatter_gather*: ranks that hold the same boundary between pipeline stages send one part each, and the receivers
    gather. *cross_entropy*: how the loss is computed, one of `workloads.operators.loss.LOSSES`; "": by *fused*.
    """

    name: str = "ideal"
    launch_seconds: float = 0.0
    fused: bool = True
    sharpness: float = 4.0
    step_seconds: float = 0.0
    exchange_seconds: float = 0.0
    context_bytes: float = 0.0
    async_tensor: bool = False
    unfused_update: bool = False
    slice_seconds: float = 0.0
    flash_forward: float = 1.0
    flash_backward: float = 1.0
    gather_ahead: bool = False
    softmax_group: int = 1
    fp32_gradients: tuple[str, ...] = ()
    gradient_buffers: str = "copies"
    scatter_gather: bool = False
    cross_entropy: str = ""

    def gradient_dtype(self, precision: str) -> str:
        """In which gradients are accumulated and reduced when a model trains in *precision*."""
        return "fp32" if precision in self.fp32_gradients else precision


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU, or the processor of a host.

    *peak_flops*: dense FLOP/s by precision, or one number for all; *memory_bandwidth* in bytes/s and *memory_bytes*;
    *sms* (0: products are not quantised); *matmul_efficiency* and *memory_efficiency*: share of the peak that the best
    kernels reach; *k_half*: the inner dimension at which a product reaches half of that; *attention_efficiency*: share
    of the peak that the products of fused attention reach, *attention_backward* in the backward pass; *spread*:
    coefficient of variation of the speed of products among GPUs of this type; *power* in W.

    >>> Accelerator(peak_flops=1).seconds([Kernel(flops=3)])
    3.0
    """

    name: str = "unit"
    peak_flops: float | Mapping[str, float] = 1.0
    memory_bandwidth: float = inf
    memory_bytes: float = inf
    sms: int = 0
    matmul_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    k_half: float = 0.0
    attention_efficiency: float = 1.0
    attention_backward: float = 1.0
    spread: float = 0.0
    power: float = 0.0
    _prices: dict[tuple[tuple[Kernel, ...], float, float], tuple[float, float]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bandwidth, self.memory_bytes, self.sms))

    def peak(self, precision: str) -> float:
        """Dense peak in FLOP/s. tf32 runs as fp32 where there is no tf32; any other lack is a `ClusterError`."""
        if not isinstance(self.peak_flops, Mapping):
            return self.peak_flops
        if self._lacks_tf32(precision):
            precision = "fp32"
        if precision not in self.peak_flops:
            raise ClusterError(f"{self.name} has no {precision}; it has {', '.join(self.peak_flops)}")
        return self.peak_flops[precision]

    def seconds(self, kernels: Iterable[Kernel], software: Software | None = None) -> float:
        """How long *kernels* take, one after the other, issued by *software* (none: launching costs nothing)."""
        kernels = tuple(kernels)
        key = (kernels, 1.0, 1.0) if software is None else (kernels, software.flash_forward, software.flash_backward)
        price = self._prices.get(key)
        if price is None:
            modelled = [kernel for kernel in kernels if kernel.seconds is None]
            gpu = sum(self.kernel_seconds(kernel, software) for kernel in modelled)
            given = sum(kernel.seconds for kernel in kernels if kernel.seconds is not None)
            price = self._prices[key] = gpu, given
        gpu, given = price
        if software is None or not software.launch_seconds or not gpu:
            return gpu + given
        host = software.launch_seconds * sum(k.launches for k in kernels if k.seconds is None)
        return smooth_maximum(gpu, host, software.sharpness) + given

    def slowest_of(self, count: int) -> Accelerator:
        """The slowest that is expected among *count*, for which all that work in step wait.

        GPUs at one power limit run products at clocks of their own; memory runs at one clock (Sinha et al. 2022, "Not
        All GPUs Are Created Equal", arXiv:2208.11035). The expected maximum of normal variables is Blom's (1958).

        >>> Accelerator(matmul_efficiency=0.8, spread=0.02).slowest_of(64).matmul_efficiency
        0.764...
        """
        if not self.spread or count == 1:
            return self
        slowdown = 1.0 + self.spread * NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
        return replace(
            self,
            matmul_efficiency=self.matmul_efficiency / slowdown,
            attention_efficiency=self.attention_efficiency / slowdown,
            attention_backward=self.attention_backward / slowdown,
        )

    def kernel_seconds(self, kernel: Kernel, software: Software | None = None) -> float:
        """GPU time of one kernel of *software*, launch not counted: the longer of its arithmetic and memory traffic."""
        if kernel.seconds is not None:
            return kernel.seconds
        memory = kernel.nbytes / (self.memory_bandwidth * self.memory_efficiency)
        if not kernel.flops:
            return memory
        peak = self.peak(kernel.precision) * self.matmul_efficiency
        if kernel.shape is None or not self.sms:
            return max(kernel.flops / peak, memory)
        if kernel.attention:
            share = self._attention_share(kernel.attention, software or Software())
            return max(2.0 * prod(kernel.shape) / (self.peak(kernel.precision) * share), memory)
        # without tensor cores libraries use Winograd's algorithm (Lavin and Gray 2015, arXiv:1509.09308) where it is
        # faster
        shapes = [kernel.shape]
        if kernel.winograd is not None and self._lacks_tf32(kernel.precision):
            shapes.append(kernel.winograd)
        return max(min(_quantised_flops(*shape, self.sms, self.k_half) for shape in shapes) / peak, memory)

    def _attention_share(self, which: str, software: Software) -> float:
        if which == "backward":
            return self.attention_backward * software.flash_backward
        return self.attention_efficiency * software.flash_forward

    def _lacks_tf32(self, precision: str) -> bool:
        return precision == "tf32" and isinstance(self.peak_flops, Mapping) and "tf32" not in self.peak_flops


def smooth_maximum(a: float, b: float, sharpness: float) -> float:
    """(a^q + b^q)^(1/q): the larger where they differ much, 2^(1/q) of either where they are equal."""
    low, high = sorted((a, b))
    return high * (1.0 + (low / high) ** sharpness) ** (1.0 / sharpness) if high else 0.0


@lru_cache(maxsize=100_000)
def _quantised_flops(batch: int, m: int, n: int, k: int, sms: int, k_half: float) -> float:
    """FLOPs that whole waves of tiles stand for, with the best tile; the last wave counts as full.

    A product of fewer tiles than SMs, as of a weight gradient, is cut along k among the idle ones (split-K).
    """
    best = inf
    for rows, columns, efficiency in TILES:
        for tile_m, tile_n in {(rows, columns), (columns, rows)}:
            tiles = batch * ceil(m / tile_m) * ceil(n / tile_n)
            depth = ceil(k / max(1, min(sms // tiles, k // SPLIT_DEPTH)))
            best = min(best, ceil(tiles / sms) * sms * 2.0 * tile_m * tile_n * (depth + k_half) / efficiency)
    return best
