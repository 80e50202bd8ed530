"""Lower bounds of step time and memory, from priced layers alone, so that few candidates need a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scenarios.build.derived import Derived
from scenarios.build.probe import AGAIN
from scenarios.build.schedule import gradient_dtype
from scenarios.plan.estimate.estimator import Estimator
from scenarios.plan.estimate.layers import PricedLayer
from scenarios.specification.offload import Offload
from scenarios.specification.specification import Specification
from workloads.memory.optimizer import state_bytes
from workloads.model import Layer
from workloads.stages import ENDS, stages_of

ALMOST = 1 - 1e-9
"""Factor on a lower bound, so that it stays one if sums are rounded."""


def least_seconds(estimator: Estimator, specification: Specification, derived: Derived) -> float:
    """Return a lower bound of the estimated step time: the computation of the rank with most of it.

    A rank begins when the first micro-batch has passed the stages before its first one, and after its last backward
    pass the gradient passes the same stages back. An asynchronous order has the bound 0.
    """
    parallelism, training = specification.parallelism, specification.training
    assert training is not None
    share, pipeline = estimator.priced_share(specification, derived), estimator.pipeline(specification)
    if pipeline.asynchronous or derived.by_stage:
        return 0.0
    layers = stages_of(share, parallelism.pp * parallelism.stages_per_rank, parallelism.layout, parallelism.split_rank)
    forwards = [_seconds(own, "F") for own in layers]
    backwards = [0.0 if pipeline.splits else _seconds(own, "B") for own in layers]
    again = {"full": "F", "selective": AGAIN}.get(
        "" if parallelism.recomputes_stages else training.recompute_method, ""
    )
    totals = [_seconds(own, pipeline.phases) + _seconds(_between(own), again) for own in layers]
    least = 0.0
    for stages in pipeline.stages:
        first = min(stages)
        busy = derived.micro_batches * sum(totals[stage] for stage in stages)
        least = max(least, sum(forwards[:first]) + busy + sum(backwards[:first]))
    fixed = estimator.scenario.software.load_seconds if share.optimizer_seconds is None else 0.0
    return (least + fixed) * ALMOST


def least_bytes(estimator: Estimator, specification: Specification, derived: Derived) -> float:
    """Return a lower bound of the memory of the tightest GPU: states, and activations of the passes in flight."""
    parallelism, training = specification.parallelism, specification.training
    assert training is not None
    software = estimator.scenario.software
    share, pipeline = estimator.priced_share(specification, derived), estimator.pipeline(specification)
    layers = stages_of(share, parallelism.pp * parallelism.stages_per_rank, parallelism.layout, parallelism.split_rank)
    dtype = gradient_dtype(training, parallelism.data, software)
    divided = parallelism.data.sharded
    on_gpu = _shares_on_gpu(training.offload)
    states = sum(
        on_gpu[name] * nbytes / (derived.replicas if name in divided else 1)
        for name, nbytes in state_bytes(training.optimizer, share.precision, dtype).items()
    )
    before = dict(zip([layer.name for layer in share.layers[1:]], share.layers, strict=False))
    kept = [sum(_kept(layer, before.get(layer.name), training.recompute_method) for layer in own) for own in layers]
    if training.offload is not None and training.offload.activations != "none":
        kept = [0.0] * len(kept)
    least = 0.0
    for stages, in_flight in zip(pipeline.stages, pipeline.in_flight, strict=True):
        parameters = sum(layer.parameters for stage in stages for layer in layers[stage])
        passes = min(in_flight, derived.micro_batches * len(stages))
        least = max(least, states * parameters + passes * min(kept[stage] for stage in stages))
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
    if recompute not in ("none", "selective", "full"):
        return 0.0
    if recompute == "full" and layer.kind not in ENDS:
        return previous.input_bytes_of_next(0) if previous else 0.0
    return layer.activation_bytes(0) - (layer.recomputable_bytes(0) if recompute == "selective" else 0.0)


def _between(layers: Sequence[Layer]) -> list[Layer]:
    return [layer for layer in layers if layer.kind not in ENDS]


def _seconds(layers: Sequence[Layer], phases: str) -> float:
    """Return the seconds of all *phases* of priced *layers*."""
    return sum(layer.seconds[phase] for layer in layers if isinstance(layer, PricedLayer) for phase in phases)
