"""A lower bound of the memory of a candidate, so that few candidates need a schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import inf

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.derived import fragmentation
from clustersim.scenarios.build.layer_probe import content
from clustersim.scenarios.build.schedule import casts_weights, frees_gradients, gradient_dtype
from clustersim.scenarios.search.estimator import Estimator
from clustersim.scenarios.search.layer_sums import ALMOST, dtype_of_gradients, of_stages, trained_parameters
from clustersim.scenarios.specification.memory_saving import Offload
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.workloads.memory.compute import PIPELINE
from clustersim.workloads.memory.optimizer import copied_gradient_bytes, foreach_bytes, resident_states
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.operators.operator import ParameterTensor
from clustersim.workloads.operators.stages import ENDS
from clustersim.workloads.parallelism._tensor_grid import TENSOR

CATEGORIES = ("parameters", "gradients", "optimizer")
"""The categories of states."""


def least_bytes(estimator: Estimator, variant: BuiltScenario) -> float:
    """Return a lower bound of the memory of the tightest GPU: states, and activations of the passes in flight.

    Activations are fragmented. When a rank holds most, its buffers may hold a part of what its activations hold at the
    time when they are most.
    """
    pipeline, software = estimator.pipeline(variant.specification), variant.software
    states, kept = _states(estimator, variant), _saved(estimator, variant)
    absent = _states(estimator, variant, ("gradients",)) if _frees(estimator, variant) else [0.0] * len(states)
    held, cast = _casts(estimator, variant)
    least, fragmented = 0.0, inf
    for stages, in_flight in zip(pipeline.stages, pipeline.in_flight, strict=True):
        passes = min(in_flight, variant.derived.micro_batches * len(stages))
        activations = passes * min(kept[stage] for stage in stages)
        # gradients that a step frees are not there when activations are most, but activations and casts of weights are
        # when they are
        beside = max(0.0, activations + sum(cast[stage] - absent[stage] for stage in stages))
        least = max(least, sum(states[stage] - held[stage] for stage in stages) + beside)
        fragmented = min(fragmented, beside, activations)
    fragmented = max(0.0, fragmented - most_buffers(estimator, variant, pipeline.stages))
    return (least + fragmentation(fragmented, software) + software.context_bytes) * ALMOST


def _frees(estimator: Estimator, variant: BuiltScenario) -> bool:
    """Return whether gradients are held from the backward pass to the step only."""
    share = estimator.share(variant)
    return frees_gradients(variant.specification, share, variant.software, variant.derived.micro_batches)


def _casts(estimator: Estimator, variant: BuiltScenario) -> tuple[list[float], list[float]]:
    """Return the bytes of casts of weights by stage: what states count all step, and what passes hold."""
    share = estimator.share(variant)
    layers = estimator.stages(share, variant.specification.parallelism)
    if not casts_weights(variant.specification, share, variant.software):
        return [0.0] * len(layers), [0.0] * len(layers)
    width = BYTES[share.precision]

    def held(layer: Layer) -> float:
        return float(width * layer.trainable_parameters)

    def cast(layer: Layer) -> float:
        return 0.0 if layer.kind == ENDS[0] else held(layer)

    return of_stages(estimator, "held", layers, width, held), of_stages(estimator, "cast", layers, width, cast)


def most_buffers(estimator: Estimator, variant: BuiltScenario, own: Sequence[Iterable[int]]) -> float:
    """Return the most bytes that a rank, which has stages of *own*, holds for a time and not as activations."""
    parallelism, training = variant.specification.parallelism, variant.specification.training
    assert training is not None
    stays = parallelism.recomputes_stages and training.recompute_method == "full"
    if training.offload is not None or variant.derived.by_stage or stays:
        # more is held: copies on their way, and parameters from the recomputation of a stage to its backward pass
        return inf
    share, dtype = estimator.share(variant), dtype_of_gradients(estimator, variant)
    copied, updated = copied_gradient_bytes(dtype, unfused_update=variant.software.unfused_update), 0.0
    if variant.software.foreach_update:
        copied += foreach_bytes(training.updated_by(variant.software))
    if copied:
        trained = trained_parameters(estimator, estimator.stages(share, parallelism))
        updated = copied * max(sum(trained[stage] for stage in stages) for stages in own)
    largest = estimator.once("largest", id(share), lambda: _largest_layer(share))
    return updated + parallelism.data.most_buffers(largest, share.precision, variant.software, dtype)


def _largest_layer(model: Model) -> float:
    """Return the most parameters of a layer of *model*, with a copy of those that layers share."""
    layers = (sum(tensor.count for tensor in layer.tensors) for layer in model.layers)
    return float(max(layers) + (model.tied_copy.count if model.tied_parameters else 0))


def _states(estimator: Estimator, variant: BuiltScenario, only: Sequence[str] = CATEGORIES) -> list[float]:
    """Return the bytes of states, of the categories *only*, that a GPU holds of each stage.

    Equal layers share their tensors.
    """
    parallelism, training, derived = variant.specification.parallelism, variant.specification.training, variant.derived
    assert training is not None
    share, data = estimator.share(variant), parallelism.data
    layers = estimator.stages(share, parallelism)
    dtype, divided = gradient_dtype(training, data, variant.software), tuple(data.sharded)
    on_gpu, rule = _shares_on_gpu(training.offload), training.updated_by(variant.software)
    # states are divided over all ranks with the same weights: those that share a sequence too
    equal, apart = derived.replicas * derived.degree("cp"), dict[str, int]()
    if not derived.by_stage:
        stage = derived.layouts[0].size // derived.degree(PIPELINE)
        for part in parallelism.parts.values():
            apart.update(part.holders(stage, derived.degree(TENSOR)))

    def of_layer(layer: Layer) -> float:
        of_axis = defaultdict[int, list[ParameterTensor]](list)
        for tensor in layer.tensors:
            of_axis[apart.get(tensor.reduced_over[-1], equal) if tensor.reduced_over else equal].append(tensor)
        return sum(
            on_gpu[name] * nbytes / (holders if name in divided else 1)
            for holders, tensors in of_axis.items()
            for name, nbytes in resident_states(tensors, rule, share.precision, dtype).items()
            if name in only
        )

    key = dtype, divided, tuple(on_gpu.values()), rule, equal, tuple(apart.items()), tuple(only)
    return of_stages(estimator, "states", layers, key, of_layer)


def _saved(estimator: Estimator, variant: BuiltScenario) -> list[float]:
    """Return the bytes that a forward pass of each stage keeps at least."""
    parallelism, training, size = variant.specification.parallelism, variant.specification.training, variant.derived
    assert training is not None
    share, how, samples = estimator.share(variant), training.recompute_method, size.micro_batch_size
    layers = estimator.stages(share, parallelism)
    if training.offload is not None and training.offload.activations != "none":
        return [0.0] * len(layers)
    before = dict(zip([layer.name for layer in share.layers[1:]], share.layers, strict=False))

    def of_layer(layer: Layer) -> float:
        return _kept(layer, before.get(layer.name), how, samples)

    def alike(layer: Layer) -> Hashable:
        """Return a key of the layer and of the one before it, whose output full recomputation keeps."""
        return content(layer), content(before[layer.name]) if layer.name in before else None

    return of_stages(estimator, "saved", layers, (how, samples), of_layer, alike)


def _shares_on_gpu(offload: Offload | None) -> Mapping[str, float]:
    """Return the share of each category of states that stays on the GPU."""
    kept = 1.0 - offload.optimizer_fraction if offload else 1.0
    return {name: kept if offload and getattr(offload, name) != "gpu" else 1.0 for name in CATEGORIES}


def _kept(layer: Layer, previous: Layer | None, recompute: str, samples: int) -> float:
    """Return the bytes that the forward pass of *layer* over *samples* keeps at least."""
    if recompute not in ("none", "selective", "operators", "full"):
        return 0.0
    if recompute == "full" and layer.kind not in ENDS:
        return previous.input_bytes_of_next(samples) if previous else 0.0
    again = recompute in ("selective", "operators")
    return layer.activation_bytes(samples) - (layer.recomputable_bytes(samples) if again else 0.0)
