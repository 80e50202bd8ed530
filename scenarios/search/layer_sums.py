"""Sums over the layers of each stage, found once for equal layers; and what bounds and estimates ask of gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.layer_probe import content
from clustersim.scenarios.build.schedule import gradient_dtype
from clustersim.scenarios.search.estimator import Estimator
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.data_parallel.buckets import Weights
from clustersim.workloads.operators.model import Layer
from clustersim.workloads.operators.operator import REPLICAS

ALMOST = 1 - 1e-9
"""Factor on a lower bound, so that it stays one if sums are rounded."""


def of_stages(
    estimator: Estimator,
    what: str,
    stages: list[list[Layer]],
    on: Hashable,
    of_layer: Callable[[Layer], float],
    alike: Callable[[Layer], Hashable] = content,
) -> list[float]:
    """Return the sum of *of_layer* over each of *stages*, of layers that are *alike* found once.

    *on*: what it depends on beside the layers.
    """

    def sums() -> list[float]:
        found = grouped(estimator, what, stages, alike)
        return found.sums({key: of_layer(layer) for key, layer in found.first.items()})

    return estimator.once(what, (id(stages), on), sums)


@dataclass(frozen=True, slots=True)
class Grouped:
    """Stages by their layers: the *kind* of each stage, the *counts* by key of each kind, the *first* layer of each."""

    kind: Sequence[int]
    counts: Sequence[Counter[Hashable]]
    first: Mapping[Hashable, Layer]

    def sums(self, each: Mapping[Hashable, float]) -> list[float]:
        """Return the sum over the layers of each stage; *each*: that of a layer, by key."""
        of_kind = [sum(count * each[key] for key, count in own.items()) for own in self.counts]
        return [of_kind[number] for number in self.kind]


def grouped(
    estimator: Estimator, what: str, stages: list[list[Layer]], alike: Callable[[Layer], Hashable] = content
) -> Grouped:
    """Return *stages* by the layers that are *alike* in them; found once for *what*."""

    def made() -> Grouped:
        keys = [[alike(layer) for layer in own] for own in stages]
        first: dict[Hashable, Layer] = {}
        for key, layer in zip(chain.from_iterable(keys), chain.from_iterable(stages), strict=True):
            first.setdefault(key, layer)
        kinds: dict[frozenset[tuple[Hashable, int]], int] = {}
        kind = [kinds.setdefault(frozenset(Counter(own).items()), len(kinds)) for own in keys]
        return Grouped(kind, [Counter(dict(own)) for own in kinds], first)

    return estimator.once("alike", (what, id(stages)), made)


def trained_parameters(estimator: Estimator, stages: list[list[Layer]]) -> list[float]:
    """Return how many parameters of each of *stages* replicas share and train."""
    return of_stages(estimator, "trained", stages, (), lambda layer: shared_weights(layer).trained.parameters)


def shared_weights(layer: Layer) -> Weights:
    """Return the weights of *layer* that replicas share."""
    return Weights(layer.name, layer.tensors).over(REPLICAS)


def dtype_of_gradients(estimator: Estimator, variant: BuiltScenario) -> str:
    """Return the number format of the gradients."""
    training, data = variant.specification.training, variant.specification.parallelism.data
    assert training is not None
    return gradient_dtype(training, data, variant.software) or estimator.share(variant).precision
