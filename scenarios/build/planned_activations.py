"""Plans which activations of a stage go to the host or are computed again, within the budget of its GPU.

The budget of activations is given, or it is what a GPU has left. What is left depends on the sequences: recomputation
gathers sharded parameters again, for example. So the first budget assumes that only states are held beside activations;
as long as the schedule that follows needs more than the GPU has, the excess is taken from the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from clustersim.scenarios.build.derived import Derived, reserved_bytes
from clustersim.scenarios.build.layer_probe import layer_seconds
from clustersim.scenarios.build.network import network_of
from clustersim.scenarios.specification.memory_saving import Offload
from clustersim.scenarios.specification.specification import Specification
from clustersim.scenarios.specification.training import Training
from clustersim.simulator.analysis.memory_upper_bound import held_at_most
from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.units import parse, show
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Compute, Copy
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import SimulationRun
from clustersim.workloads.data_parallel.gradients import actions
from clustersim.workloads.memory.chain import Chain, LayerSeconds, stage_chain
from clustersim.workloads.memory.chain_sequence import ChainSequence, saving_all
from clustersim.workloads.memory.offload_and_recompute import KARMA, POFO, SWAPPED, combined_together, least_plans
from clustersim.workloads.memory.offload_and_recompute_tables import Rules
from clustersim.workloads.memory.offloaded_activations import CopyBuffers, named_layers, offloaded
from clustersim.workloads.memory.optimal_checkpointing import BudgetError, least_together, optimal_together
from clustersim.workloads.memory.recompute import check_not_recomputed, stage_layers
from clustersim.workloads.operators.model import Model
from clustersim.workloads.parallelism._parallelism import TrainingStep

Plan = Callable[[tuple[Chain, ...], float, int], tuple[ChainSequence, ...]]
"""(chains of the stages of a GPU, budget in bytes, passes in flight) -> their sequences."""

SAMPLE = 1e9
"""Bytes of the copy of which the bandwidth is measured: the latency is then below 0.1 % of its time."""


def with_activations_offloaded(schedule: Schedule, training: Training, model: Model) -> Schedule:
    """Return *schedule* with the activations of the chosen layers of *model* on the host between their passes."""
    offload = training.offload
    if offload is None or offload.planned or offload.activations == "none":
        return schedule
    names = [layer.name for layer in model.layers]
    if isinstance(offload.activations, list):
        names = named_layers(model, offload.activations)
    return offloaded(schedule, names, CopyBuffers(offload.outstanding, offload.ahead))


def planned_offload(offload: Offload | None, recompute: str, network: Communicator, ranks: int) -> Plan | None:
    """Return how sequences with copies are planned; None if *offload* does not ask for it.

    *recompute*: the method; with ``optimal`` layers may be run again. *ranks*: how many copy at a time.
    """
    if offload is None or not offload.planned:
        return None
    rules = _rules(offload, recompute)
    bandwidth = copy_bandwidth(network, ranks)

    def plan(chains: tuple[Chain, ...], budget: float, in_flight: int) -> tuple[ChainSequence, ...]:
        return _combined(chains, budget, bandwidth, in_flight, rules)

    return plan


def least_offload(offload: Offload, recompute: str, otherwise: Callable[[], Plan]) -> Plan:
    """Return how sequences are found that take little memory; *otherwise* if none of a few known ones fits."""
    rules = _rules(offload, recompute)

    def plan(chains: tuple[Chain, ...], budget: float, in_flight: int) -> tuple[ChainSequence, ...]:
        # bytes on the GPU do not depend on the bandwidth of copies
        return least_plans(chains, budget, SAMPLE, in_flight, rules) or otherwise()(chains, budget, in_flight)

    return plan


def _rules(offload: Offload, recompute: str) -> Rules:
    return KARMA if offload.activations == "karma" else POFO if recompute == "optimal" else SWAPPED


def copy_bandwidth(network: Communicator, ranks: int) -> float:
    """Return the bandwidth (bytes/s) of a copy between GPU and host while all *ranks* copy in the same direction."""
    seconds = 0.0
    for to in ("host", "gpu"):
        program = Program("copies", (Copy(name="copy", nbytes=SAMPLE, to=to),))
        schedule = Schedule(Mesh.regular({"all": ranks}), (program,), (0,) * ranks)
        seconds = max(seconds, SimulationRun(schedule, network).run().makespan)
    return SAMPLE / seconds


ROUNDS = 8
"""Times that an automatic budget is reduced at most; two are enough where gathers do not depend on the sequences."""

DIGITS = 4
"""Of sizes in messages."""

Finish = Callable[[Mapping[int, ChainSequence]], Schedule]
"""The whole schedule with these sequences, by stage."""


def optimal_sequences(
    computed: Schedule,
    specification: Specification,
    step: TrainingStep,
    derived: Derived,
    cluster: Cluster,
    finish: Finish,
    *,
    least: bool = False,
) -> dict[int, ChainSequence]:
    """Return the fastest sequence of each stage that the budget of the scenario allows.

    *computed*: the computation without recomputation and exchanges. *finish* makes the whole schedule of it. *least*:
    return sequences that take little memory instead, for which nothing is simulated. Raises `ScheduleError` if the
    budget cannot be met.
    """
    training, network = specification.training, network_of(specification, cluster, derived.devices)
    assert training is not None
    check_not_recomputed(computed, training.planned_by)
    method = training.recompute_method

    def fastest() -> Plan:
        return planned_offload(training.offload, method, network, derived.ranks) or _optimal

    if least:
        seconds = {layer.name: ANY for layer in step.model.layers}
        offload = training.offload
        plan = least_offload(offload, method, fastest) if offload and offload.planned else _least
    else:
        parts = list(specification.parallelism.parts.values())
        seconds = layer_seconds(step.model, derived, parts, step.software, network)
        plan = fastest()
    ranks = rank_stages(computed, step.model, step.micro_batch_size, seconds, plan)
    if training.activation_budget is not None:
        return within(training.activation_budget, ranks)
    return what_is_left(ranks, finish, network, step.software)


ANY = LayerSeconds(1.0, 1.0, 1.0)
"""Durations of a layer where they do not matter."""


@lru_cache(maxsize=256)
def _least(chains: tuple[Chain, ...], budget: float, in_flight: int) -> tuple[ChainSequence, ...]:
    needed, sequences = least_together(chains, in_flight)
    if budget < needed:
        raise BudgetError(budget, needed)
    return sequences


@lru_cache(maxsize=256)
def _combined(
    chains: tuple[Chain, ...], budget: float, bandwidth: float, in_flight: int, rules: Rules
) -> tuple[ChainSequence, ...]:
    return combined_together(chains, budget, bandwidth, in_flight, rules)


@lru_cache(maxsize=256)
def _optimal(chains: tuple[Chain, ...], budget: float, in_flight: int) -> tuple[ChainSequence, ...]:
    return optimal_together(chains, budget, in_flight)


@dataclass(frozen=True, slots=True)
class RankStages:
    """The *stages* of a GPU, their chains, and how many of their passes are *in_flight*; *plan* finds the sequences."""

    stages: tuple[int, ...]
    chains: tuple[Chain, ...]
    in_flight: int
    plan: Plan = _optimal

    def __str__(self) -> str:
        name = "stage" if len(self.stages) == 1 else "stages"
        passes = "micro-batch" if self.in_flight == 1 else "micro-batches"
        return f"{name} {', '.join(map(str, self.stages))} ({self.in_flight} {passes} in flight)"

    def saving_all(self) -> dict[int, ChainSequence]:
        """Return the sequences without recomputation."""
        return {stage: saving_all(len(chain)) for stage, chain in zip(self.stages, self.chains, strict=True)}

    def sequences(self, budget: float) -> dict[int, ChainSequence]:
        """Return the sequences of the stages within *budget* bytes. Raises `BudgetError`."""
        return dict(zip(self.stages, self.plan(self.chains, budget, self.in_flight), strict=True))


def check_order(order: Order, name: str, training: Training) -> None:
    """Raise `ScheduleError` if the backward passes of *order*, called *name*, are divided or run beside forwards."""
    what = training.planned_by
    instead = "full" if training.recompute_method == "optimal" else "activations: all"
    phases = {action.phase for row in order.rows for action in row}
    if phases & set("IW"):
        raise ScheduleError(
            f"{what} needs whole backward passes, but {name} divides them into I and W; take {instead}, or another "
            "schedule such as 1f1b"
        )
    if order.overlapped:
        raise ScheduleError(
            f"{what} needs one pass at a time, but {name} runs a forward beside a backward; take {instead}, or another "
            "schedule such as 1f1b"
        )


def rank_stages(
    computed: Schedule, share: Model, samples: int, seconds: Mapping[str, LayerSeconds], plan: Plan = _optimal
) -> list[RankStages]:
    """Return the stages of each GPU; *computed* as in `optimal_sequences`. GPUs with the same stages count once."""
    layers = {layer.name: layer for layer in share.layers}
    before = dict(zip([layer.name for layer in share.layers[1:]], share.layers, strict=False))
    chains = {
        stage: stage_chain([layers[name] for name in names], before.get(names[0]), samples, seconds)
        for stage, names in stage_layers(computed).items()
    }
    in_flight: dict[tuple[int, ...], int] = {}
    for program in computed.programs:
        own = stages_of_program(program)
        in_flight[own] = max(in_flight.get(own, 0), _in_flight(program))
    return [
        RankStages(own, tuple(chains[stage] for stage in own), most, plan) for own, most in in_flight.items() if own
    ]


def stages_of_program(program: Program) -> tuple[int, ...]:
    """Return the stages that *program* computes."""
    computed = (op.action for op in program.distinct() if isinstance(op, Compute) and op.layer)
    return tuple(sorted({action.stage for action in computed if action and action.phase == "F"}))


def _in_flight(program: Program) -> int:
    """The most forward passes of *program* whose backward passes have not ended."""
    most = running = 0
    for _, action in actions(program, "FB"):
        running += 1 if action.phase == "F" else -1
        most = max(most, running)
    return most


def within(budget: float, ranks: Sequence[RankStages]) -> dict[int, ChainSequence]:
    """Return the sequences of all stages with *budget* bytes of activations on each GPU.

    Raises `ScheduleError` with the smallest budget that suffices for all.
    """
    found: dict[int, ChainSequence] = {}
    short: list[tuple[float, RankStages]] = []
    for rank in ranks:
        try:
            found |= rank.sequences(budget)
        except BudgetError as error:
            short.append((error.least, rank))
    if short:
        least, rank = max(short, key=itemgetter(0))
        raise ScheduleError(
            f"is too little: the activations of {rank} need at least {_rounded_up(least)}, which is the smallest "
            "budget that can be met"
        )
    return found


def what_is_left(
    ranks: Sequence[RankStages], finish: Finish, network: Communicator, software: Software
) -> dict[int, ChainSequence]:
    """Return the sequences with which each GPU holds as many activations as its memory leaves.

    Raises `ScheduleError` if a GPU has less than the activations need.
    """
    of_activations = 1.0 - software.fragmentation
    plain = {stage: one for rank in ranks for stage, one in rank.saving_all().items()}
    states = _needs(finish(plain), network, software)
    budgets = {rank.stages: states[rank.stages].left * of_activations for rank in ranks}
    sequences: dict[int, ChainSequence] = {}
    for _ in range(ROUNDS):
        sequences = {}
        for rank in ranks:
            sequences |= _left(rank, budgets[rank.stages])
        needs = _needs(finish(sequences), network, software)
        over = {stages: need for stages, need in needs.items() if need.excess > 0 and need.activations}
        if not over:
            break
        for stages, need in over.items():
            budgets[stages] -= need.excess * of_activations
    return sequences


def _left(rank: RankStages, budget: float) -> dict[int, ChainSequence]:
    """The sequences of *rank* with *budget* bytes, what its GPU has left."""
    try:
        return rank.sequences(budget)
    except BudgetError as error:
        has = f"{show(budget, 'size', 4)} are left" if budget > 0 else "nothing is left"
        raise ScheduleError(
            f"there is no room: after states, buffers and reserves {has} on a GPU of {rank}, whose activations "
            f"need at least {_rounded_up(error.least)}"
        ) from None


class _Need(NamedTuple):
    """Bytes of a GPU at the peak of its tensors.

    *left* beside states and reserves; *excess* over the capacity (negative: free); *activations* at the peak.
    """

    left: float
    excess: float
    activations: float


def _needs(schedule: Schedule, network: Communicator, software: Software) -> dict[tuple[int, ...], _Need]:
    """By stages, the need of the GPU that is worst off."""
    found: dict[tuple[int, ...], _Need] = {}
    capacities = _capacities(schedule, network)
    for number, program in enumerate(schedule.programs):
        if program.on != "gpu" or number not in capacities:
            continue
        rank, capacity = capacities[number]
        held = held_at_most(program, host=False)
        activations = min(held.nbytes, held.by_category.get("activations", 0.0))
        reserved = reserved_bytes(schedule, rank, network, software, activations)
        left = capacity - sum(program.resident.values()) - reserved["context"] - reserved["communication"]
        need = _Need(left, held.nbytes + sum(reserved.values()) - capacity, activations)
        stages = stages_of_program(program)
        worst = found.get(stages, need)
        found[stages] = _Need(min(worst.left, left), *max(worst[1:], need[1:]))
    return found


def _capacities(schedule: Schedule, network: Communicator) -> dict[int, tuple[int, float]]:
    """By number of the program, the (rank, bytes) of its smallest GPU."""
    found: dict[int, tuple[int, float]] = {}
    for rank, number in enumerate(schedule.program_of):
        if schedule.programs[number].on == "gpu":
            nbytes = network.cluster.accelerator(network.devices[rank]).memory_bytes
            if number not in found or nbytes < found[number][1]:
                found[number] = rank, nbytes
    return found


def _rounded_up(nbytes: float) -> str:
    """*nbytes* with four digits, not less than they are."""
    text = show(nbytes, "size", DIGITS)
    return text if parse(text, "size") >= nbytes else show(nbytes * (1 + 5 * 10**-DIGITS), "size", DIGITS)
