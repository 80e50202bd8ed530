"""Texts of `clustersim show`: pipeline order, groups, all values with defaults, topology, and recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from textwrap import wrap
from typing import Any

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.derived import Derived
from clustersim.scenarios.build.layer_probe import layer_seconds
from clustersim.scenarios.build.network import network_of
from clustersim.scenarios.build.planned_activations import RankStages, copy_bandwidth, rank_stages, stages_of_program
from clustersim.scenarios.build.schedule import gradient_dtype, model_share, pipeline_order
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ClusterError, ScheduleError
from clustersim.simulator.reading.plain_text import table
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.yaml_and_json import yaml_text
from clustersim.simulator.schedule.ops import Copy
from clustersim.workloads.memory.chain import Chain
from clustersim.workloads.memory.chain_execution import TimedExecution, executed_with_copies
from clustersim.workloads.memory.chain_sequence import ChainSequence, observed

MOST_LISTED = 16
"""Ranks of a group, or groups of an axis, that are printed one by one."""


def order(scenario: BuiltScenario) -> str:
    """Return the pipeline order as CSV, in the form of torch.distributed.pipelining. Raises `ScenarioError` if none."""
    scenario.check_trains("pipeline order")
    made = pipeline_order(scenario.specification, scenario.derived, scenario.document)
    return made.csv().rstrip("\n")


def groups(scenario: BuiltScenario) -> str:
    """Return the groups of every axis of the mesh, and the devices of the ranks."""
    schedule, devices = scenario.schedule(), scenario.derived.devices
    lines = []
    for name, axis in schedule.mesh.axes.items():
        sizes = sorted({len(group) for group in axis.groups})
        lines.append(f"{name}: {len(axis.groups)} groups of {' and '.join(map(str, sizes))}")
        lines += [f"  {_thinned(group)}" for group in axis.groups[:MOST_LISTED]]
        if len(axis.groups) > MOST_LISTED:
            lines.append(f"  ... and {len(axis.groups) - MOST_LISTED} more")
    rows = [
        [
            f"rank {rank}",
            schedule.program(rank).role,
            devices[rank],
            f"node {scenario.cluster().node_of(devices[rank])}",
        ]
        for rank in range(min(schedule.mesh.world_size, 4 * MOST_LISTED))
    ]
    more = schedule.mesh.world_size - len(rows)
    return "\n".join([*lines, "", plain_text.table(rows), *([f"... and {more} more ranks"] if more else [])])


def _thinned(group: Sequence[int]) -> str:
    if len(group) <= MOST_LISTED:
        return " ".join(map(str, group))
    return f"{' '.join(map(str, group[: MOST_LISTED - 2]))} ... {group[-1]}"


def derived(scenario: BuiltScenario) -> str:
    """Return the scenario as YAML with all defaults; derived values are comments."""
    specification, facts = scenario.specification, scenario.derived
    data = scenario.document.data
    sections = [key for key in ("cluster", "model") if key in data]
    given: dict[str, Any] = {key: _without_empty({**data[key], "sources": ""}) for key in sections}
    values = specification.model_dump(mode="json", exclude={"variants", "table", *given}, exclude_none=True)
    values = {"version": 1, "name": scenario.name, **given, **_without_empty(values)}
    found: dict[str, Any] = {"gpus": facts.gpus, "idle_gpus": len(facts.idle), "ranks": len(facts.devices)}
    if scenario.model is None:
        for section in ("parallelism", "software"):
            values.pop(section, None)
    else:
        found |= _training(scenario)
    found["hosts"] = len(scenario.cluster().hosts)
    follows = "".join(f"# {line}\n" for line in yaml_text(found).splitlines())
    return f"{yaml_text(values)}\n# what follows\n{follows}".rstrip()


def _without_empty(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _without_empty(value) for key, value in values.items() if value not in ("", {}, [])}
    return values


def _training(scenario: BuiltScenario) -> dict[str, Any]:
    model, facts, training = scenario.model, scenario.derived, scenario.specification.training
    assert model is not None
    assert training is not None
    parts = scenario.specification.parallelism.parts.values()
    return {
        **facts.degrees,
        "world_size": f"{facts.described} = {facts.ranks}",
        "global_batch": _batch(facts, training.global_batch_size),
        "micro_batch_size": facts.micro_batch_size,
        "micro_batches": facts.micro_batches,
        "software": _software(scenario),
        "gradient_dtype": gradient_dtype(training, scenario.specification.parallelism.data, scenario.software),
        **{key: value for part in parts for key, value in part.facts().items()},
        "layers": len(model.layers),
        "parameters": model.parameters,
        **({"trainable_parameters": trained} if (trained := model.trainable_parameters) != model.parameters else {}),
        "model_flops_per_step": model.flops(1) * training.global_batch_size,
        "ops_per_step": sum(len(scenario.schedule().program(rank).ops) for rank in range(len(facts.devices))),
    }


def _software(scenario: BuiltScenario) -> str:
    choice = scenario.stack_choice
    return f"{choice.stack} ({choice.reason or 'as given'}; the others: clustersim list software)"


def _batch(facts: Derived, samples: int) -> str:
    """The rule that the replicas and the size of a micro-batch divide the global batch, with its numbers."""
    replicas = "" if facts.by_stage else f"dp {facts.replicas} x "
    return f"{samples} = {replicas}micro_batch_size {facts.micro_batch_size} x {facts.micro_batches} micro-batches"


def topology(cluster: Cluster) -> str:
    """Return the devices and links of *cluster* by kind, and typical routes with their bottlenecks."""
    rows = [
        [f"{count}", link.kind, show(link.bandwidth, "bandwidth"), show(link.latency, "time")]
        for link, count in cluster.links.counts.items()
    ]
    kinds = cluster.vertices.counts.items()
    lines = [cluster.name, plain_text.table([[f"{count}", kind] for kind, count in kinds], align="rl"), ""]
    lines.append(plain_text.table(rows, ["links", "kind", "bandwidth (one way)", "latency"], "rlrr"))
    return "\n".join([*lines, "", "routes", *_routes(cluster)])


def _routes(cluster: Cluster) -> Iterator[str]:
    for source, target in _pairs(cluster):
        try:
            route = cluster.route(source, target)
        except ClusterError as error:
            yield f"  {source} -> {target}: {error}"
            continue
        if not route:
            continue
        passed = [cluster.ends[route[0]][0], *(cluster.ends[number][1] for number in route)]
        narrow = min(cluster.links[number].bandwidth for number in route)
        yield f"  {' > '.join(passed)}: {show(narrow, 'bandwidth')}, {show(cluster.latency(route), 'time')}"


def _pairs(cluster: Cluster) -> Iterator[tuple[str, str]]:
    first = cluster.gpus[0]
    for same in (True, False):
        others = (gpu for gpu in cluster.gpus[1:] if (cluster.node_of(gpu) == cluster.node_of(first)) is same)
        nearest = next(others, None)
        if nearest:
            yield first, nearest
    if cluster.gpus[-1] != first:
        yield first, cluster.gpus[-1]
    if cluster.hosts:
        yield first, cluster.hosts[0]


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
    scenario.check_trains("recomputation")
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
