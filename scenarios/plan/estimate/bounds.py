"""Lower bounds of step time and memory, from priced layers alone, so that few candidates need a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scenarios.build.built import BuiltScenario
from scenarios.build.probe import AGAIN
from scenarios.build.schedule import gradient_dtype
from scenarios.plan.estimate.estimator import Estimator
from scenarios.plan.estimate.layers import PricedLayer
from scenarios.specification.offload import Offload
from workloads.memory.optimizer import resident_states
from workloads.model import Layer
from workloads.stages import ENDS, stages_of

ALMOST = 1 - 1e-9
"""Factor on a lower bound, so that it stays one if sums are rounded."""


def least_seconds(estimator: Estimator, variant: BuiltScenario) -> float:
    """Return a lower bound of the estimated step time: the computation of the rank with most of it.

    A rank begins when the first micro-batch has passed the stages before its first one, and after its last backward
    pass the gradient passes the same stages back. An asynchronous order has the bound 0.
    """
    parallelism, training, derived = variant.specification.parallelism, variant.specification.training, variant.derived
    assert training is not None
    share, pipeline = estimator.priced_share(variant), estimator.pipeline(variant.specification)
    if pipeline.asynchronous or derived.by_stage:
        return 0.0
    layers = stages_of(share, parallelism.pp * parallelism.stages_per_rank, parallelism.layout, parallelism.split_rank)
    forwards = [_seconds(own, "F") for own in layers]
    backwards = [0.0 if pipeline.splits else _seconds(own, "B") for own in layers]
    again = {"full": "F", "selective": AGAIN, "operators": AGAIN}.get(
        "" if parallelism.recomputes_stages else training.recompute_method, ""
    )
    totals = [_seconds(own, pipeline.phases) + _seconds(_between(own), again) for own in layers]
    least = 0.0
    for stages in pipeline.stages:
        first = min(stages)
        busy = derived.micro_batches * sum(totals[stage] for stage in stages)
        least = max(least, sum(forwards[:first]) + busy + sum(backwards[:first]))
    fixed = variant.software.load_seconds if share.optimizer_seconds is None else 0.0
    return (least + fixed) * ALMOST


def least_bytes(estimator: Estimator, variant: BuiltScenario) -> float:
    """Return a lower bound of the memory of the tightest GPU: states, and activations of the passes in flight."""
    parallelism, training, derived = variant.specification.parallelism, variant.specification.training, variant.derived
    assert training is not None
    software = variant.software
    share, pipeline = estimator.priced_share(variant), estimator.pipeline(variant.specification)
    layers = stages_of(share, parallelism.pp * parallelism.stages_per_rank, parallelism.layout, parallelism.split_rank)
    dtype = gradient_dtype(training, parallelism.data, software)
    divided = parallelism.data.sharded
    on_gpu = _shares_on_gpu(training.offload)
    before = dict(zip([layer.name for layer in share.layers[1:]], share.layers, strict=False))
    kept = [sum(_kept(layer, before.get(layer.name), training.recompute_method) for layer in own) for own in layers]
    if training.offload is not None and training.offload.activations != "none":
        kept = [0.0] * len(kept)
    least, known = 0.0, dict[int, float]()
    # states are divided over all ranks with the same weights: those that share a sequence too
    equal = derived.replicas * derived.degree("cp")

    def states_of(layer: Layer) -> float:
        """Return the bytes of the states of *layer*; equal layers share their tensors."""
        if id(layer.tensors) not in known:
            held = resident_states(layer.tensors, training.update_rule, share.precision, dtype)
            parts = {name: nbytes / (equal if name in divided else 1) for name, nbytes in held.items()}
            known[id(layer.tensors)] = sum(on_gpu[name] * nbytes for name, nbytes in parts.items())
        return known[id(layer.tensors)]

    for stages, in_flight in zip(pipeline.stages, pipeline.in_flight, strict=True):
        states = sum(states_of(layer) for stage in stages for layer in layers[stage])
        passes = min(in_flight, derived.micro_batches * len(stages))
        least = max(least, states + passes * min(kept[stage] for stage in stages))
    return (least + software.context_bytes) * ALMOST


def _shares_on_gpu(offload: Offload | None) -> Mapping[str, float]:
    """Return the share of each category of states that stays on the GPU."""
    kept = 1.0 - offload.optimizer_fraction if offload else 1.0
    return {
        name: kept if offload and getattr(offload, name) != "gpu" else 1.0
        for name in ("parameters", "gradients", "optimizer")
    }


def _kept(layer: Layer, previous: Layer | None, recompute: str) -> float:
    """Return the bytes that the forward pass of *layer* keeps at least."""
    if recompute not in ("none", "selective", "operators", "full"):
        return 0.0
    if recompute == "full" and layer.kind not in ENDS:
        return previous.input_bytes_of_next(0) if previous else 0.0
    return layer.activation_bytes(0) - (layer.recomputable_bytes(0) if recompute in ("selective", "operators") else 0.0)


def _between(layers: Sequence[Layer]) -> list[Layer]:
    return [layer for layer in layers if layer.kind not in ENDS]


def _seconds(layers: Sequence[Layer], phases: str) -> float:
    """Return the seconds of all *phases* of priced *layers*."""
    return sum(layer.seconds[phase] for layer in layers if isinstance(layer, PricedLayer) for phase in phases)
