"""Lower bounds of the step time, from priced layers alone, so that few candidates need a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.derived import Derived
from clustersim.scenarios.build.layer_probe import STOPPED
from clustersim.scenarios.search.estimator import Estimator
from clustersim.scenarios.search.layer_sums import (
    ALMOST,
    dtype_of_gradients,
    grouped,
    of_stages,
    shared_weights,
    trained_parameters,
)
from clustersim.scenarios.search.pipeline_facts import PipelineFacts
from clustersim.scenarios.search.prices import LayerPrice
from clustersim.simulator.hardware.kernel import BYTES, memory_bound
from clustersim.simulator.network.plan import TransferPlan
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.mesh import Axis
from clustersim.simulator.schedule.ops import Collective
from clustersim.workloads.data_parallel.buckets import NO_COPIES, Bucket
from clustersim.workloads.data_parallel.gradients import accumulated_bytes
from clustersim.workloads.memory.compute import PIPELINE
from clustersim.workloads.operators.model import Layer
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.operators.stages import ENDS


def mean_kernel_seconds(estimator: Estimator, variant: BuiltScenario) -> float:
    """Return a lower bound of `kernel_seconds`: the kernels of all layers, if the pipeline ranks shared them equally.

    Of the GPUs with equal work no less than one pipeline rank has, so the slowest of so many is waited for.
    """
    derived, pipeline = variant.derived, estimator.pipeline(variant.specification)
    if pipeline.asynchronous or derived.by_stage:
        return 0.0
    share, prices, gpu = estimator.share(variant), estimator.computing(variant), estimator.gpu(derived)
    phases, ranks = estimator.phases(variant), len(derived.devices)
    layers = estimator.once("all layers", id(share), lambda: [list(share.layers)])
    key = id(layers), id(prices), phases
    (of_all,) = estimator.once("seconds of all", key, lambda: _totals(estimator, layers, prices, phases))
    faster = gpu.slowdown(ranks // len(pipeline.stages), now=ranks) if gpu else 1.0
    return derived.micro_batches * of_all / len(pipeline.stages) * faster * ALMOST


def kernel_seconds(estimator: Estimator, variant: BuiltScenario) -> float:
    """Return a lower bound of the estimated step time from kernels alone: it needs no simulation.

    It is that of `least_seconds` without launches and exchanges, but with the host's time for messages.
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
    seconds, around = _stage_seconds(estimator, variant, computing=computing), _around(estimator, variant, layers)
    least, begins = 0.0, [number for number, stages in enumerate(pipeline.stages) if 0 in stages]

    def after(number: int) -> float:
        return _after(estimator, variant, layers, number, computing=computing)

    for number in _latest_of_a_kind(estimator, pipeline, layers):
        stages = pipeline.stages[number]
        first = min(stages)
        ahead, back = sum(seconds.forwards[:first]), sum(seconds.backwards[:first])
        busy = derived.micro_batches * sum(part * seconds.totals[stage] for stage, part in stages.items())
        busy += sum(around[stage] for stage in stages)
        again = ((stage, derived.micro_batches - kept) for stage, kept in pipeline.kept.items() if stage in stages)
        busy += sum(count * seconds.again[stage] for stage, count in again)
        beside = NOTHING if computing else _exchanged(estimator, variant, layers, number)
        # the step ends on this rank, and on that of the first stage
        for outside, end in ((ahead, after(number)), (ahead + back, min(map(after, begins)))):
            longest = max(outside + busy, beside.gathering, outside * beside.left + busy + beside.lost)
            least = max(least, longest + end)
    return least * ALMOST


def _latest_of_a_kind(estimator: Estimator, pipeline: PipelineFacts, layers: list[list[Layer]]) -> Iterable[int]:
    """Return of the pipeline ranks with the same work those that begin last: no other of them has a higher bound."""
    kind = grouped(estimator, "layers", layers).kind

    def ranks() -> list[int]:
        found: dict[Hashable, int] = {}
        for number, stages in enumerate(pipeline.stages):
            work = Counter((kind[stage], part, pipeline.kept.get(stage)) for stage, part in stages.items())
            same = found.setdefault(frozenset(work.items()), number)
            if min(stages) >= min(pipeline.stages[same]):
                found[frozenset(work.items())] = number
        return list(found.values())

    return estimator.once("kinds of ranks", (id(pipeline), id(layers)), ranks)


@dataclass(frozen=True, slots=True)
class _StageSeconds:
    """The seconds of a micro-batch on each stage: *forwards*; *backwards*, 0 if they are split; and all, *totals*.

    *again*: those of a forward pass that is run again, without a message.
    """

    forwards: Sequence[float]
    backwards: Sequence[float]
    totals: Sequence[float]
    again: Sequence[float]


def _stage_seconds(estimator: Estimator, variant: BuiltScenario, *, computing: bool = False) -> _StageSeconds:
    """Return the seconds of the stages of *variant*; with *computing*, of kernels alone."""
    parallelism, training = variant.specification.parallelism, variant.specification.training
    assert training is not None
    pipeline, share = estimator.pipeline(variant.specification), estimator.share(variant)
    prices = estimator.least_prices(variant) if computing else estimator.prices(variant)
    phases = estimator.phases(variant)
    layers, message = estimator.stages(share, parallelism), 0.0
    if share.optimizer_seconds is None:
        message = variant.software.host_seconds_per_message

    def seconds(*phases: str) -> list[float]:
        return _totals(estimator, layers, prices, phases)

    def with_messages() -> _StageSeconds:
        waits = [message * crossed for crossed in _crossed(pipeline.stages, len(layers))]
        ahead, back = [0.0, *waits], [*waits, 0.0]
        return _StageSeconds(
            _sums(seconds("F", "F"), ahead),
            [0.0] * len(back) if pipeline.splits else _sums(seconds("B", "B"), back),
            _sums(seconds(*phases), ahead, back),
            seconds(STOPPED, STOPPED),
        )

    key = id(layers), id(prices), id(pipeline), phases, message
    return estimator.once("stage seconds", key, with_messages)


def _totals(
    estimator: Estimator, stages: list[list[Layer]], prices: Mapping[Hashable, LayerPrice], phases: Sequence[str]
) -> list[float]:
    """Return the seconds of each of *stages*; *phases*: of a micro-batch on layers, and on those never recomputed."""
    found = grouped(estimator, "layers", stages)
    return found.sums({key: prices[key].total(phases[layer.kind in ENDS]) for key, layer in found.first.items()})


def _crossed(own: Sequence[Iterable[int]], count: int) -> list[bool]:
    """Return for each of *count* stages but the first whether another rank has the stage before; *own*: by rank."""
    rank = {stage: number for number, stages in enumerate(own) for stage in stages}
    return [rank.get(stage, 0) != rank.get(stage - 1, 0) for stage in range(1, count)]


def _sums(*columns: Sequence[float]) -> list[float]:
    return [sum(row) for row in zip(*columns, strict=True)]


def _around(estimator: Estimator, variant: BuiltScenario, stages: list[list[Layer]]) -> Sequence[float]:
    """Return the seconds of each of *stages* in a step for kernels around gradients.

    They sum those of micro-batches, and copy them around reductions. What is done for all layers of a stage is counted
    as one kernel: that takes least.
    """
    derived, data, software = variant.derived, variant.specification.parallelism.data, variant.software
    share, dtype, count = estimator.share(variant), dtype_of_gradients(estimator, variant), derived.micro_batches
    copies = data.copies(share, software, dtype) if derived.replicas > 1 else NO_COPIES
    added = 0.0
    if data.whole_gradients and share.optimizer_seconds is None:
        added = accumulated_bytes(data.accumulation(software), share.precision, dtype, count)
    if not (copies.passes or added):
        return [0.0] * len(stages)
    gpu = estimator.network(derived).communicator.cluster.accelerator(derived.devices[0])
    times = count if "gradients" in data.sharded and not data.whole_gradients else 1

    def seconds() -> list[float]:
        trained = trained_parameters(estimator, stages)
        every = of_stages(estimator, "summed", stages, (), attrgetter("trainable_parameters"))

        def of_stage(reduced: float, parameters: float) -> float:
            copied, summed = (
                copies.kernel([Bucket(reduced * BYTES[dtype], "")]),
                memory_bound(parameters * added, launches=0),
            )
            return times * gpu.kernel_seconds(copied, software) + count * gpu.kernel_seconds(summed, software)

        known = {sizes: of_stage(*sizes) for sizes in set(zip(trained, every, strict=True))}
        return [known[sizes] for sizes in zip(trained, every, strict=True)]

    return estimator.once("around", (id(stages), copies, dtype, times, added, count, variant.stack), seconds)


def _after(
    estimator: Estimator, variant: BuiltScenario, stages: list[list[Layer]], number: int, *, computing: bool = False
) -> float:
    """Return the seconds of the host, and unless *computing* of exchanges, that end a step on pipeline rank *number*.

    A bucket takes no less time than its share of all bytes at once.
    """
    software, training, derived = variant.software, variant.specification.training, variant.derived
    share = estimator.share(variant)
    if share.optimizer_seconds is not None or training is None:
        return 0.0
    own = estimator.pipeline(variant.specification).stages[number]
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
        tensors = of_stages(estimator, "tensors", stages, (), lambda layer: sum(one.trainable for one in layer.tensors))
        trained = trained_parameters(estimator, stages)
        found = per_tensor * sum(tensors[stage] for stage in own)
        for kind, width in sizes:
            nbytes = float(sum(trained[stage] for stage in own) * width)
            found += _exchange(estimator, derived, kind, nbytes, number).alone if nbytes else 0.0
        return found

    key = id(stages), id(own), tuple(sizes), per_tensor, tuple(derived.layouts[0].degrees.items()), network
    return software.load_seconds + estimator.once("after", key, seconds)


def _widths(estimator: Estimator, variant: BuiltScenario) -> tuple[int, int]:
    """Return the bytes of an element of the parameters, and of the gradients."""
    return BYTES[estimator.share(variant).precision], BYTES[dtype_of_gradients(estimator, variant)]


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
    counts, own = data.least_exchanges, estimator.pipeline(variant.specification).stages[number]
    if not counts or derived.replicas == 1 or derived.degree("cp") > 1 or min(own.values()) < 1:
        return NOTHING
    width, reduced = _widths(estimator, variant)

    def exchanges() -> dict[str, Exchanges]:
        found = grouped(estimator, "layers", stages)
        several = sum((found.counts[found.kind[stage]] for stage in own), Counter[Hashable]())
        weights = [(count, shared_weights(found.first[key])) for key, count in several.items()]
        sizes = {
            "all_gather": [(count, one.gathered(width)) for count, one in weights if one.parameters],
            "reduce_scatter": [
                (count, float(one.trained.parameters * reduced)) for count, one in weights if one.trained.parameters
            ],
        }
        exchanged = {}
        for kind, each in sizes.items():
            plans = [(count, _exchange(estimator, derived, kind, size, number)) for count, size in each]
            exchanged[kind] = Exchanges(
                sum(count * plan.alone for count, plan in plans),
                max((plan.alone for _, plan in plans), default=0.0),
                sum(count * plan.alone * plan.sms for count, plan in plans),
                max((plan.sms for _, plan in plans), default=0.0),
            )
        return exchanged

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
