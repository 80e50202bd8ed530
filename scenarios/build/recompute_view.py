"""What each stage of a scenario runs again, as text: the sequence, its memory, its time, and the overhead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from textwrap import wrap

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.explanation import check_trains
from clustersim.scenarios.build.layer_probe import layer_seconds
from clustersim.scenarios.build.network import network_of
from clustersim.scenarios.build.planned_activations import RankStages, copy_bandwidth, rank_stages, stages_of_program
from clustersim.scenarios.build.schedule import model_share
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.plain_text import table
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.ops import Copy
from clustersim.workloads.memory.chains.chain import Chain
from clustersim.workloads.memory.chains.execution import TimedExecution, executed_with_copies
from clustersim.workloads.memory.chains.sequence import ChainSequence, observed

WIDTH = 110
"""Of a line of a sequence."""

BETWEEN = "|"
"""Stands for the time between forward and backward pass on a stage without the loss."""


@dataclass(frozen=True, slots=True)
class StageRun:
    """A *stage* of *rank*, its *chain*, and what it runs."""

    stage: int
    rank: RankStages
    chain: Chain
    sequence: ChainSequence
    run: TimedExecution

    @property
    def content(self) -> tuple[object, ...]:
        """Equal for stages that are printed together."""
        layers = tuple((layer.forward, layer.backward, layer.activation, layer.tape) for layer in self.chain.layers)
        return layers, str(self.sequence), self.rank.in_flight, len(self.rank.stages)


def recompute_text(scenario: BuiltScenario) -> str:
    """Return the sequence of each stage of *scenario* in the notation of Rotor, then a table of memory and time.

    Raises `ScenarioError` if it trains no model or its backward passes are no sequence of whole layers.
    """
    check_trains(scenario, "recomputation")
    training = scenario.specification.training
    assert training is not None
    if training.recompute_method == "selective":
        return "selective: the core attention of each layer runs again just before the backward pass of the layer"
    if training.recompute_method == "operators":
        return f"{training.recompute_options}: these of each layer run again just before the backward pass of the layer"
    groups: dict[tuple[object, ...], list[StageRun]] = {}
    for one in stages_as_run(scenario):
        groups.setdefault(one.content, []).append(one)
    last = max(one.stage for own in groups.values() for one in own)
    blocks = [_block(own, last) for own in groups.values()]
    copies = any(own[0].run.copied for own in groups.values())
    return "\n\n".join([*blocks, _table(list(groups.values())), *_notes(last, copies)])


def stages_as_run(scenario: BuiltScenario) -> Iterator[StageRun]:
    """Yield the stages of *scenario* with what they run, in order of the pipeline ranks."""
    specification, derived, schedule = scenario.specification, scenario.derived, scenario.schedule()
    assert scenario.model is not None
    parts = specification.parallelism.parts
    share = model_share(scenario.model, parts, scenario.document)
    network = network_of(specification, scenario.cluster(), derived.devices)
    seconds = layer_seconds(share, derived, list(parts.values()), scenario.software, network)
    copies = any(isinstance(op, Copy) for program in schedule.programs for op in program.distinct())
    bandwidth = copy_bandwidth(network, derived.ranks) if copies else inf
    programs = {stages_of_program(program): program for program in schedule.programs}
    for rank in rank_stages(schedule, share, derived.micro_batch_size, seconds):
        for stage, chain in zip(rank.stages, rank.chains, strict=True):
            layers = [layer.name for layer in chain.layers]
            sequence = observed(programs[rank.stages], stage, layers)
            try:
                run = executed_with_copies(sequence, chain, bandwidth)
            except ScheduleError as error:
                raise scenario.document.error(("parallelism", "schedule"), str(error)) from None
            yield StageRun(stage, rank, chain, sequence, run)


def _block(several: list[StageRun], last: int) -> str:
    one = several[0]
    layers = [layer.name for layer in one.chain.layers]
    names = layers[0] if len(layers) == 1 else f"{layers[0]} (1) to {layers[-1]} ({len(layers)})"
    turn = "Loss BLoss" if one.stage == last else BETWEEN
    text = wrap(one.sequence.text(turn), WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join([f"{_named(several)}: {names}", *text])


def _named(several: list[StageRun]) -> str:
    numbers = [one.stage for one in several]
    return f"stage {numbers[0]}" if len(numbers) == 1 else f"stages {', '.join(map(str, numbers))}"


def _table(groups: list[list[StageRun]]) -> str:
    header = ["", "layers", "forwards", "in flight", "held each", "peak of the GPU", "time", "without", "overhead"]
    rows = [_row(own) for own in groups]
    if any(own[0].run.copied for own in groups):
        header += ["to the host", "at most there", "waits"]
        rows = [(*row, *_copied(own[0])) for row, own in zip(rows, groups, strict=True)]
    return table(rows, tuple(header), "lr")


def _copied(one: StageRun) -> tuple[str, str, str]:
    run = one.run
    return (
        show(run.copied, "size", 4),
        show(run.host_peak * one.rank.in_flight, "size", 4),
        show(run.waited, "time", 4),
    )


def _row(several: list[StageRun]) -> tuple[str, ...]:
    one = several[0]
    plain = one.chain.seconds
    peak = (one.rank.in_flight - 1) * one.run.held + one.run.peak
    return (
        _named(several),
        str(len(one.chain)),
        str(one.sequence.forwards()),
        str(one.rank.in_flight),
        show(one.run.held, "size", 4),
        show(peak, "size", 4),
        show(one.run.seconds, "time", 4),
        show(plain, "time", 4),
        f"{one.run.seconds / plain - 1:z.1%}" if plain else "",
    )


def _notes(last: int, copies: bool) -> Iterator[str]:
    letters = (
        "F1c: forward pass of layer 1 that keeps its input; F1n: keeps nothing; F1e: keeps all that B1, its backward "
        "pass, needs." + (f" {BETWEEN}: other micro-batches pass." if last else "")
    )
    if copies:
        letters += (
            "\nO1t: what layer 1 keeps leaves for the host (O1a: its output, kept as an input); W1t: the computation "
            "waits until it has left; P1t: it comes back."
        )
    yield (
        f"{letters}\nTime: of a micro-batch, computing and exchanges within the layers"
        + (", and waits for copies" if copies else "")
        + ". Peak: activations of all micro-batches in flight, at most."
    )
