"""Memory of model states by ZeRO's table 1."""

from __future__ import annotations

from clustersim.workloads.memory.optimizer import state_bytes
from clustersim.workloads.parallelism.zero import SHARDED


def zero_state_bytes(
    stage: int, replicas: int, optimizer: str, precision: str, gradient_dtype: str | None = None
) -> dict[str, float]:
    """Return the bytes per parameter that each of *replicas* ranks holds throughout a step, by category.

    With Adam in 16 bits (K = 12) and N ranks: 4 + K/N in stage 1, 2 + (2 + K)/N in stage 2, (4 + K)/N in stage 3
    (arXiv:1910.02054, table 1).

    >>> zero_state_bytes(2, 4, "adam", "fp16")
    {'parameters': 2.0, 'gradients': 0.5, 'optimizer': 3.0}
    """
    whole = state_bytes(optimizer, precision, gradient_dtype)
    return {name: nbytes / (replicas if name in SHARDED[stage] else 1) for name, nbytes in whole.items()}
