"""The bytes that a stage holds on each of its GPUs, for the methods with memory as a constraint."""

from __future__ import annotations

from scenarios.plan.chains.chain import PipelineChain


def held_bytes(
    chain: PipelineChain, i: int, j: int, in_flight: int, *, recompute: bool = False, versions: int = 1
) -> float:
    """Return the bytes of the layers i to j - 1: states, *versions* of the weights, activations of *in_flight*.

    *in_flight*: the micro-batches that have run forward and not yet backward. With *recompute* the activations of one
    layer at a time are there again.
    """
    states, weights = chain.total("state_bytes"), chain.total("parameter_bytes")
    kept = chain.total("recomputed_bytes" if recompute else "activation_bytes")
    again = max(layer.activation_bytes for layer in chain.layers[i:j]) if recompute else 0.0
    held = states[j] - states[i] + (versions - 1) * (weights[j] - weights[i]) + in_flight * (kept[j] - kept[i]) + again
    return float(held)
