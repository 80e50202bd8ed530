"""Durations of kernels on another GPU: each kernel by its class, relative to the GPU of the trace."""

from __future__ import annotations

from dataclasses import dataclass

from clustersim.scenarios.real_traces.kernels import ATTENTION, PRODUCT
from clustersim.scenarios.trace_workload.work import TracedWork
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.kernel import BYTES, matmul
from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.reading.lookup import names
from clustersim.topologies.catalogue import GPUS, device


def gpu_of(name: str) -> str:
    """Return the GPU of the catalogue that a trace calls *name*; empty if there is none.

    >>> gpu_of("NVIDIA H100 80GB HBM3"), gpu_of("NVIDIA A100-SXM4-80GB"), gpu_of("Tesla V100-SXM2-16GB"), gpu_of("GPU")
    ('h100', 'a100_80gb', 'v100_16gb', '')
    """
    words = name.lower().replace("-", " ").replace("_", " ").split()
    parts = {one: one.split("_") for one in names(GPUS)}
    fitting = [one for one, several in parts.items() if all(word in words for word in several)]
    return max(fitting, key=lambda one: len(parts[one]), default="")


@dataclass(frozen=True)
class GpuSpeed:
    """Kernels were measured on the GPU *source* and run on *target*; None: it is not known on which they ran."""

    source: Accelerator | None
    target: Accelerator

    @classmethod
    def between(cls, source: str, target: Accelerator) -> GpuSpeed:
        """Return the speed of *target* relative to the GPU *source* of the catalogue; empty: not known."""
        return cls(device(GPUS, source).accelerator() if source else None, target)

    @property
    def changes(self) -> bool:
        """True if the GPUs differ. The GPU ``unit`` has no rates: on it all kernels keep their durations."""
        return self.source is not None and self.target.name not in (self.source.name, "unit")

    def seconds(self, work: TracedWork) -> float:
        """Return the seconds of *work* on the target.

        Products are scaled by their price on both GPUs, if the trace has their shape, else by the rate of products in
        their precision (default bf16); attention by that rate too; other kernels by the bandwidth of the memory. Copies
        between GPU and host, and work of the host, keep their durations.
        """
        if not self.changes or not work.kernel_class:
            return work.seconds
        assert self.source is not None
        if work.kernel_class == PRODUCT and work.shape is not None and work.precision in BYTES:
            batch, m, n, k = work.shape
            kernel = matmul(m, n, k, batch=batch, precision=work.precision)
            try:
                return work.seconds * self.target.kernel_seconds(kernel) / self.source.kernel_seconds(kernel)
            except ClusterError:
                return work.seconds * self._rate(self.source) / self._rate(self.target)
        if work.kernel_class in (PRODUCT, ATTENTION):
            precision = work.precision or "bf16"
            return work.seconds * self._rate(self.source, precision) / self._rate(self.target, precision)
        return work.seconds * _bandwidth(self.source) / _bandwidth(self.target)

    def _rate(self, gpu: Accelerator, precision: str = "bf16") -> float:
        """Return the FLOP/s of products of *gpu* in *precision*; in fp16 where there is no bf16."""
        for one in (precision, "bf16", "fp16", "fp32"):
            try:
                return gpu.peak(one) * gpu.matmul_efficiency
            except ClusterError:
                continue
        return gpu.matmul_efficiency


def _bandwidth(gpu: Accelerator) -> float:
    return gpu.memory_bandwidth * gpu.memory_efficiency
