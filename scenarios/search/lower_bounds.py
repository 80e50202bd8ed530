"""Lower bounds of step time and memory, from priced layers alone, so that few candidates need a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from math import inf

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.derived import Derived
from clustersim.scenarios.build.layer_probe import AGAIN, content
from clustersim.scenarios.build.schedule import gradient_dtype
from clustersim.scenarios.search.estimator import Estimator
from clustersim.scenarios.specification.memory_saving import Offload
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.network.plan import TransferPlan
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.mesh import Axis
from clustersim.simulator.schedule.ops import Collective
from clustersim.workloads.data_parallel.buckets import Bucket, Weights
from clustersim.workloads.memory.compute import PIPELINE
from clustersim.workloads.memory.optimizer import resident_states
from clustersim.workloads.operators.model import Layer
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.operators.stages import ENDS

ALMOST = 1 - 1e-9
"""Factor on a lower bound, so that it stays one if sums are rounded."""


def kernel_seconds(estimator: Estimator, variant: BuiltScenario) -> float:
    """Return a lower bound of the estimated step time from kernels alone: it needs no simulation.

    It is that of `least_seconds` without launches and exchanges.
    """
    return _least_seconds(estimator, variant, computing=True)


def least_seconds(estimator: Estimator, variant: BuiltScenario) -> float:
    """Return a lower bound of the estimated step time: the computation of the rank with most of it.

    A rank begins when the first micro-batch has passed the stages before its first one, and after its last backward
    pass the gradient passes the same stages back. An asynchronous order has the bound 0. Exchanges within layers count
    too, and the gathers of parameters, if they take longer.
    """
    return _least_seconds(estimator, variant, computing=False)


def _least_seconds(estimator: Estimator, variant: BuiltScenario, *, computing: bool) -> float:
    derived, pipeline = variant.derived, estimator.pipeline(variant.specification)
    if pipeline.asynchronous or derived.by_stage:
        return 0.0
    layers = estimator.stages(estimator.share(variant), variant.specification.parallelism)
    of_stages, copies = _stage_seconds(estimator, variant, computing=computing), _copies(estimator, variant, layers)
    least = 0.0
    for number, stages in enumerate(pipeline.stages):
        first = min(stages)
        outside = sum(of_stages.forwards[:first]) + sum(of_stages.backwards[:first])
        busy = derived.micro_batches * sum(of_stages.totals[stage] for stage in stages)
        busy += sum(copies[stage] for stage in stages)
        beside = NOTHING if computing else _exchanged(estimator, variant, layers, number)
        least = max(least, outside + busy, beside.gathering, outside * beside.left + busy + beside.lost)
    return (least + _after(estimator, variant, computing=computing)) * ALMOST


@dataclass(frozen=True, slots=True)
class _StageSeconds:
    """The seconds of a micro-batch on each stage: *forwards*; *backwards*, 0 if they are split; and all, *totals*."""

    forwards: Sequence[float]
    backwards: Sequence[float]
    totals: Sequence[float]


def _stage_seconds(estimator: Estimator, variant: BuiltScenario, *, computing: bool = False) -> _StageSeconds:
    """Return the seconds of the stages of *variant*; with *computing*, of kernels alone."""
    parallelism, training = variant.specification.parallelism, variant.specification.training
    assert training is not None
    pipeline, share = estimator.pipeline(variant.specification), estimator.share(variant)
    prices = estimator.computing(variant) if computing else estimator.prices(variant)
    method = "" if parallelism.recomputes_stages else training.recompute_method
    again = {"full": "F", "selective": AGAIN, "operators": AGAIN}.get(method, "")
    layers = estimator.stages(share, parallelism)

    def seconds(phases: str, end_phases: str) -> list[float]:
        """Return the seconds of *phases* of each stage; of *end_phases* of the layers that are never recomputed."""
        counts, first = _alike(estimator, "layers", layers, content)
        each = {
            key: sum(prices[key].seconds[phase] for phase in (end_phases if layer.kind in ENDS else phases))
            for key, layer in first.items()
        }
        return [sum(count * each[key] for key, count in own.items()) for own in counts]

    def of_stages() -> _StageSeconds:
        backward = "" if pipeline.splits else "B"
        totals = seconds(pipeline.phases + again, pipeline.phases)
        return _StageSeconds(seconds("F", "F"), seconds(backward, backward), totals)

    return estimator.once("stage seconds", (id(layers), id(prices), pipeline.phases, pipeline.splits, again), of_stages)


def _copies(estimator: Estimator, variant: BuiltScenario, stages: list[list[Layer]]) -> Sequence[float]:
    """Return the seconds of each of *stages* in a step for the kernels around the reductions of its gradients."""
    derived, data, software = variant.derived, variant.specification.parallelism.data, variant.software
    share = estimator.share(variant)
    dtype = _gradient_dtype(estimator, variant)
    copies = data.copies(share, software, dtype)
    if derived.replicas == 1 or not copies.passes:
        return [0.0] * len(stages)
    gpu = estimator.network(derived).communicator.cluster.accelerator(derived.devices[0])
    times = derived.micro_batches if "gradients" in data.sharded else 1

    def seconds() -> list[float]:
        buckets = [Bucket(float(elements * BYTES[dtype]), "") for elements in _trained(estimator, stages)]
        # all buckets of a stage are as one: that takes least
        return [times * gpu.kernel_seconds(copies.kernel([bucket]), software) for bucket in buckets]

    return estimator.once("copies", (id(stages), copies, dtype, times, variant.stack), seconds)


def _after(estimator: Estimator, variant: BuiltScenario, *, computing: bool = False) -> float:
    """Return the seconds of the host, and unless *computing* of exchanges, that end a step on each rank at least."""
    software, training, derived = variant.software, variant.specification.training, variant.derived
    share = estimator.share(variant)
    if share.optimizer_seconds is not None or training is None:
        return 0.0
    stages = estimator.stages(share, variant.specification.parallelism)
    own = estimator.pipeline(variant.specification).stages
    per_tensor = software.host_seconds_per_tensor if training.offload is None else 0.0
    kinds = variant.specification.parallelism.data.exchanges_after(software)
    if computing or derived.replicas == 1 or derived.degree("cp") > 1:
        kinds = ()
    sizes, network = list[tuple[str, int]](), 0
    if kinds:
        width, reduced = _widths(estimator, variant)
        sizes = [(kind, width if kind == "all_gather" else reduced) for kind in kinds]
        network = id(estimator.network(derived))

    def seconds() -> float:
        """Return those of the rank with the least; a bucket takes no less time than its share of all bytes at once."""
        tensors = _of_stages(
            estimator, "tensors", stages, (), lambda layer: sum(one.trainable for one in layer.tensors)
        )
        trained = _trained(estimator, stages)
        least = inf
        for number, of_rank in enumerate(own):
            found = per_tensor * sum(tensors[stage] for stage in of_rank)
            for kind, width in sizes:
                nbytes = float(sum(trained[stage] for stage in of_rank) * width)
                found += _exchange(estimator, derived, kind, nbytes, number).alone if nbytes else 0.0
            least = min(least, found)
        return least

    key = id(stages), id(own), tuple(sizes), per_tensor, tuple(derived.layouts[0].degrees.items()), network
    return software.load_seconds + estimator.once("after", key, seconds)


def _trained(estimator: Estimator, stages: list[list[Layer]]) -> list[float]:
    """Return how many parameters of each of *stages* replicas share and train."""
    return _of_stages(estimator, "trained", stages, (), lambda layer: _reduced(layer).trained.parameters)


def _reduced(layer: Layer) -> Weights:
    """Return the weights of *layer* that replicas share."""
    return Weights(layer.name, layer.tensors).over(REPLICAS)


def _widths(estimator: Estimator, variant: BuiltScenario) -> tuple[int, int]:
    """Return the bytes of an element of the parameters, and of the gradients."""
    return BYTES[estimator.share(variant).precision], BYTES[_gradient_dtype(estimator, variant)]


def _gradient_dtype(estimator: Estimator, variant: BuiltScenario) -> str:
    """Return the number format of the gradients."""
    training, data = variant.specification.training, variant.specification.parallelism.data
    assert training is not None
    return gradient_dtype(training, data, variant.software) or estimator.share(variant).precision


def _exchange(estimator: Estimator, derived: Derived, kind: str, nbytes: float, number: int) -> TransferPlan:
    """Return the plan of a collective over the replicas of pipeline rank *number*."""
    layout = derived.layouts[0]
    axis = Axis(layout.groups(REPLICAS))
    place = axis.place(layout.groups(PIPELINE)[0][number]) if PIPELINE in layout.degrees else (0, 0)
    assert place is not None
    op = Collective(name=kind, kind=kind, over=REPLICAS, nbytes=nbytes)
    return estimator.network(derived).plan(op, axis, axis.groups[place[0]])


@dataclass(frozen=True, slots=True)
class Beside:
    """What exchanges beside computation take of a rank: the seconds of *gathering* parameters, and of computation that
    are *lost*, because exchanges hold SMs; the part of the computation's speed that is *left* beside all of them."""

    gathering: float = 0.0
    lost: float = 0.0
    left: float = 1.0


NOTHING = Beside()


def _exchanged(estimator: Estimator, variant: BuiltScenario, stages: list[list[Layer]], number: int) -> Beside:
    """Return what exchanges of parameters and gradients take of pipeline rank *number* at least.

    Those of a kind run one after the other. The first gather is left out: it is beside no other. Computation has the
    SMs that they leave, so if they hold the shares a and b for G and R seconds of the step, whatever they run beside,
    computation loses a G + b R - a b min(G, R) seconds, less what falls to idle times. Nothing if the number or the
    groups of the exchanges do not follow from the method.
    """
    derived, data = variant.derived, variant.specification.parallelism.data
    counts = data.least_exchanges
    if not counts or derived.replicas == 1 or derived.degree("cp") > 1:
        return NOTHING
    width, reduced = _widths(estimator, variant)
    own = estimator.pipeline(variant.specification).stages[number]

    def exchanges() -> dict[str, Exchanges]:
        counts, first = _alike(estimator, "layers", stages, content)
        several = sum((counts[stage] for stage in own), Counter[Hashable]())
        weights = [(count, _reduced(first[key])) for key, count in several.items()]
        sizes = {
            "all_gather": [(count, one.gathered(width)) for count, one in weights if one.parameters],
            "reduce_scatter": [
                (count, float(one.trained.parameters * reduced)) for count, one in weights if one.trained.parameters
            ],
        }
        found = {}
        for kind, each in sizes.items():
            plans = [(count, _exchange(estimator, derived, kind, size, number)) for count, size in each]
            found[kind] = Exchanges(
                sum(count * plan.alone for count, plan in plans),
                max((plan.alone for _, plan in plans), default=0.0),
                sum(count * plan.alone * plan.sms for count, plan in plans),
                max((plan.sms for _, plan in plans), default=0.0),
            )
        return found

    key = id(stages), number, tuple(derived.layouts[0].degrees.items()), width, reduced, id(estimator.network(derived))
    found = estimator.once("exchanges", key, exchanges)
    times = {kind: counts.get(kind, 0) * derived.micro_batches for kind in found}
    held = sum(times[kind] * one.held for kind, one in found.items())
    gathers, reductions = found["all_gather"], found["reduce_scatter"]
    gathering = max(0.0, times["all_gather"] * gathers.seconds - gathers.longest)
    twice = gathers.sms * reductions.sms * min(gathering, times["reduce_scatter"] * reductions.seconds)
    lost = max(0.0, held - gathers.longest * gathers.sms - twice)
    return Beside(gathering, lost, (1 - gathers.sms) * (1 - reductions.sms))


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The *seconds* of one exchange of each layer, the *longest* of them, the sum of their seconds times the share of
    SMs that they *held*, and the largest such share *sms*."""

    seconds: float
    longest: float
    held: float
    sms: float


def least_bytes(estimator: Estimator, variant: BuiltScenario) -> float:
    """Return a lower bound of the memory of the tightest GPU: states, and activations of the passes in flight."""
    pipeline = estimator.pipeline(variant.specification)
    states, kept = _states(estimator, variant), _saved(estimator, variant)
    least = 0.0
    for stages, in_flight in zip(pipeline.stages, pipeline.in_flight, strict=True):
        passes = min(in_flight, variant.derived.micro_batches * len(stages))
        held = sum(states[stage] for stage in stages)
        least = max(least, held + passes * min(kept[stage] for stage in stages))
    return (least + variant.software.context_bytes) * ALMOST


def _states(estimator: Estimator, variant: BuiltScenario) -> list[float]:
    """Return the bytes of states that a GPU holds of each stage; equal layers share their tensors."""
    parallelism, training, derived = variant.specification.parallelism, variant.specification.training, variant.derived
    assert training is not None
    share, data = estimator.share(variant), parallelism.data
    layers = estimator.stages(share, parallelism)
    dtype, divided = gradient_dtype(training, data, variant.software), tuple(data.sharded)
    on_gpu, rule = _shares_on_gpu(training.offload), training.update_rule
    # states are divided over all ranks with the same weights: those that share a sequence too
    equal = derived.replicas * derived.degree("cp")

    def of_layer(layer: Layer) -> float:
        held = resident_states(layer.tensors, rule, share.precision, dtype)
        return sum(on_gpu[name] * nbytes / (equal if name in divided else 1) for name, nbytes in held.items())

    key = dtype, divided, tuple(on_gpu.values()), rule, equal
    return _of_stages(estimator, "states", layers, key, of_layer)


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

    return _of_stages(estimator, "saved", layers, (how, samples), of_layer, alike)


def _of_stages(
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
        counts, first = _alike(estimator, what, stages, alike)
        each = {key: of_layer(layer) for key, layer in first.items()}
        return [sum(count * each[key] for key, count in own.items()) for own in counts]

    return estimator.once(what, (id(stages), on), sums)


def _alike(
    estimator: Estimator, what: str, stages: list[list[Layer]], alike: Callable[[Layer], Hashable]
) -> tuple[list[Counter[Hashable]], dict[Hashable, Layer]]:
    """Return how many layers of each key each stage has, and the first layer of each key; found once for *what*."""

    def counted() -> tuple[list[Counter[Hashable]], dict[Hashable, Layer]]:
        keys = [[alike(layer) for layer in own] for own in stages]
        named = zip(chain.from_iterable(keys), chain.from_iterable(stages), strict=True)
        first: dict[Hashable, Layer] = {}
        for key, layer in named:
            first.setdefault(key, layer)
        return [Counter(own) for own in keys], first

    return estimator.once("alike", (what, id(stages)), counted)


def _shares_on_gpu(offload: Offload | None) -> Mapping[str, float]:
    """Return the share of each category of states that stays on the GPU."""
    kept = 1.0 - offload.optimizer_fraction if offload else 1.0
    return {
        name: kept if offload and getattr(offload, name) != "gpu" else 1.0
        for name in ("parameters", "gradients", "optimizer")
    }


def _kept(layer: Layer, previous: Layer | None, recompute: str, samples: int) -> float:
    """Return the bytes that the forward pass of *layer* over *samples* keeps at least."""
    if recompute not in ("none", "selective", "operators", "full"):
        return 0.0
    if recompute == "full" and layer.kind not in ENDS:
        return previous.input_bytes_of_next(samples) if previous else 0.0
    again = recompute in ("selective", "operators")
    return layer.activation_bytes(samples) - (layer.recomputable_bytes(samples) if again else 0.0)
