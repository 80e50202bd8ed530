"""A planning problem from a scenario: the layers at each micro-batch and tensor degree, and the machine.

Layers and collectives are simulated alone, by the engine itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.network import network_of
from clustersim.scenarios.build.schedule import gradient_dtype, model_share
from clustersim.scenarios.search.pipeline_chain import Level, Machine, PipelineChain, PipelineLayer
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import SimulationRun
from clustersim.workloads.memory.optimizer import resident_states
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.operators.stages import ENDS

LEAST_BYTES = 2**20
"""A bandwidth is that of at least so many bytes, also for a model with fewer parameters."""


def chain_of(scenario: BuiltScenario, *, micro_batch_size: int | None = None, tp: int = 1) -> PipelineChain:
    """Return the layers of the model of *scenario*, priced for a micro-batch on one of *tp* neighbouring GPUs.

    A step of one micro-batch without pipeline and replicas is simulated. *micro_batch_size*: default as in the
    scenario. Raises `ScenarioError` if the scenario trains no model, or *tp* does not divide it.
    """
    if scenario.specification.training is None:
        raise ScenarioError(f"{scenario.name} {scenario.aim}; there is no model to plan for")
    size = micro_batch_size or scenario.derived.micro_batch_size
    alone = _alone(scenario, size, tp)
    timeline = _simulated(scenario, alone.schedule(), alone.derived.devices)
    assert alone.model is not None
    model = model_share(alone.model, alone.specification.parallelism.parts, alone.document)
    return PipelineChain(_layers(alone, model, timeline, size, tp), size, tp)


def machine_of(scenario: BuiltScenario) -> Machine:
    """Return the levels of the cluster of *scenario*: GPUs of a node, then nodes.

    Each bandwidth is that of an all-reduce of the gradients of the model over all units, as the scenario's transport
    runs it. Memory is what the software leaves of a GPU. Raises `ScenarioError` for nodes of several sizes.
    """
    cluster = scenario.cluster()
    sizes = Counter(cluster.node_of(gpu) for gpu in cluster.gpus)
    if len(set(sizes.values())) > 1:
        given = " and ".join(map(str, sorted(set(sizes.values()))))
        raise scenario.document.error(("cluster",), f"has nodes of {given} GPUs; a plan needs nodes of one size")
    inside, nodes = next(iter(sizes.values())), len(sizes)
    nbytes = _gradient_bytes(scenario)
    levels = [
        Level(count, _ring_bandwidth(scenario, cluster.gpus[:ranks], nbytes))
        for count, ranks in ((inside, inside), (nodes, inside * nodes))
        if count > 1
    ]
    memory = min(gpu.memory_bytes for gpu in cluster.count(cluster.gpus))
    return Machine(tuple(levels) or (Level(1, float("inf")),), max(0.0, memory - scenario.software.context_bytes))


def _alone(scenario: BuiltScenario, size: int, tp: int) -> BuiltScenario:
    """Return the scenario of one micro-batch on *tp* GPUs, without variation."""
    given = scenario.specification.parallelism
    if given.mode != "1d":
        message = f"{scenario.specification.plan.method} knows tp along one dimension; give a number without tp_mode"
        raise scenario.document.error(("parallelism", "tp"), message)
    own = {
        "sequence_parallel": given.sequence_parallel,
        "tp_overlap": given.tp_overlap,
        "tp_split": given.tp_split,
        "tp_head": given.tp_head,
    }
    training = {"global_batch_size": size, "micro_batch_size": size, "recompute": "none", "steps": 1}
    changes = {f"training.{key}": value for key, value in training.items()}
    section = {"tp": tp, "dp": 1, **(own if tp > 1 else {})}
    return scenario.changed({**changes, "parallelism": section, "simulation": {}}, f"a plan with tp {tp}")


def _simulated(scenario: BuiltScenario, schedule: Schedule, devices: Sequence[str]) -> Timeline:
    cluster = scenario.cluster()
    network = network_of(scenario.specification, cluster, devices, together=cluster.gpus)
    return SimulationRun(schedule, network, scenario.software).run()


def _layers(alone: BuiltScenario, model: Model, timeline: Timeline, size: int, tp: int) -> tuple[PipelineLayer, ...]:
    training = alone.specification.training
    assert training is not None
    dtype = gradient_dtype(training, alone.specification.parallelism.data, alone.software)
    seconds = _seconds(timeline, model)
    made, before = [], 0.0
    for layer in model.layers:
        held = resident_states(layer.tensors, training.updated_by(alone.software), model.precision, dtype)
        kept, end = layer.activation_bytes(size), layer.kind in ENDS
        forward, backward = seconds[layer.name]
        made.append(
            PipelineLayer(
                layer.name,
                forward,
                backward,
                output_bytes=layer.output_bytes(size),
                gradient_bytes=float(layer.trainable_parameters * BYTES[dtype]),
                parameter_bytes=held["parameters"],
                state_bytes=sum(held.values()),
                activation_bytes=kept,
                recompute=0.0 if end else forward,
                recomputed_bytes=kept if end else before,
                end=end,
                channelwise=_channelwise(layer),
                gathered=tp > 1,
            )
        )
        before = layer.output_bytes(size)
    return tuple(made)


def _seconds(timeline: Timeline, model: Model) -> dict[str, tuple[float, float]]:
    """Return (forward, backward) seconds of each layer: from the begin of its first op to that of the next layer."""
    own, program = timeline.of(0), timeline.schedule.program(0)
    begins: dict[tuple[str, str], float] = {}
    end = 0.0
    for number, begin, ended in zip(own.op.tolist(), own.begin.tolist(), own.end.tolist(), strict=True):
        op = program.ops[number]
        if op.action and op.layer and op.action.phase in "FB":
            key = op.action.phase, op.layer
            begins[key] = min(begin, begins.get(key, begin))
            end = max(end, ended)
    names = [layer.name for layer in model.layers]
    order = [("F", name) for name in names] + [("B", name) for name in reversed(names)]
    times = [*(begins[key] for key in order), end]
    spent = {key: after - begin for key, begin, after in zip(order, times, times[1:], strict=False)}
    return {name: (spent["F", name], spent["B", name]) for name in names}


def _channelwise(layer: Layer) -> bool:
    """True for a layer without products: it has no weights, or those of a batch norm."""
    return not layer.tensors or layer.kind.startswith("BatchNorm")


def _gradient_bytes(scenario: BuiltScenario) -> float:
    training, model = scenario.specification.training, scenario.model
    if training is None or model is None:
        raise ScenarioError(f"{scenario.name} {scenario.aim}; there is no model to plan for")
    dtype = gradient_dtype(training, scenario.specification.parallelism.data, scenario.software)
    return float(max(LEAST_BYTES, model.trainable_parameters * BYTES[dtype]))


def _ring_bandwidth(scenario: BuiltScenario, gpus: Sequence[str], nbytes: float) -> float:
    """Return the bus bandwidth of an all-reduce, 2 (n - 1) / n bytes / s."""
    ranks = len(gpus)
    op = Collective(name="all-reduce", kind="all_reduce", over="all", nbytes=nbytes)
    schedule = Schedule(Mesh.regular({"all": ranks}), (Program("rank", (op,)),), (0,) * ranks)
    seconds = _simulated(scenario, schedule, gpus).makespan
    return 2 * (ranks - 1) / ranks * nbytes / seconds if seconds else float("inf")


@dataclass(frozen=True)
class Problem:
    """*chains*: the same layers, by micro-batch and tensor degree. *batch*: samples of a step. *seed*: of a search.

    *uniform*: the plan has one tensor degree and one choice of recomputation, as a scenario can execute.
    """

    chains: tuple[PipelineChain, ...]
    machine: Machine
    batch: int
    seed: int = 0
    uniform: bool = True

    @property
    def undivided(self) -> list[PipelineChain]:
        """The chains without tensor parallelism."""
        return [chain for chain in self.chains if chain.tp == 1]

    @property
    def by_micro_batch(self) -> list[list[PipelineChain]]:
        """The chains of each micro-batch that divides the batch, by ascending tensor degree."""
        sizes = sorted({chain.micro_batch_size for chain in self.chains if self.batch % chain.micro_batch_size == 0})
        ordered = sorted(self.chains, key=lambda chain: chain.tp)
        return [[chain for chain in ordered if chain.micro_batch_size == size] for size in sizes]


def problem_of(
    scenario: BuiltScenario,
    *,
    micro_batch_sizes: Sequence[int] = (),
    tensor_degrees: Sequence[int] = (),
    seed: int = 0,
) -> Problem:
    """Return the problem of *scenario*.

    *micro_batch_sizes*: by default that of the scenario. *tensor_degrees*: by default the powers of two up to the GPUs
    of a node that divide the model. Raises `ScenarioError` if the scenario trains no model, or a given degree does not
    divide it.
    """
    machine, training = machine_of(scenario), scenario.specification.training
    assert training is not None
    sizes = micro_batch_sizes or [scenario.derived.micro_batch_size]
    chains = [chain_of(scenario, micro_batch_size=size) for size in sizes]
    for size in sizes:
        chains += _divided(scenario, size, machine, tensor_degrees)
    return Problem(tuple(chains), machine, training.global_batch_size, seed)


def _divided(scenario: BuiltScenario, size: int, machine: Machine, degrees: Sequence[int]) -> list[PipelineChain]:
    """Return the chains of tensor degrees above 1."""
    if degrees:
        return [chain_of(scenario, micro_batch_size=size, tp=tp) for tp in degrees if tp > 1]
    found, tp = [], 2
    while tp <= machine.levels[0].count:
        try:
            found.append(chain_of(scenario, micro_batch_size=size, tp=tp))
        except ScenarioError:
            break
        tp *= 2
    return found
