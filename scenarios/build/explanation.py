"""Texts of `clustersim show`: the pipeline order, the groups, all values with defaults, the topology."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.derived import Derived
from clustersim.scenarios.build.schedule import gradient_dtype, pipeline_order
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.errors import ClusterError, ScenarioError
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.yaml_and_json import yaml_text

MOST = 16
"""Ranks of a group, or groups of an axis, that are printed one by one."""


def order(scenario: BuiltScenario) -> str:
    """Return the pipeline order as CSV, in the form of torch.distributed.pipelining. Raises `ScenarioError` if none."""
    check_trains(scenario, "pipeline order")
    made = pipeline_order(scenario.specification, scenario.derived, scenario.document)
    return made.csv().rstrip("\n")


def check_trains(scenario: BuiltScenario, what: str) -> None:
    """Raise `ScenarioError` if *scenario* measures a collective and therefore has no *what*."""
    if scenario.model is None:
        raise ScenarioError(f"{scenario.name} measures a collective; it has no {what}")


def groups(scenario: BuiltScenario) -> str:
    """Return the groups of every axis of the mesh, and the devices of the ranks."""
    schedule, devices = scenario.schedule(), scenario.derived.devices
    lines = []
    for name, axis in schedule.mesh.axes.items():
        sizes = sorted({len(group) for group in axis.groups})
        lines.append(f"{name}: {len(axis.groups)} groups of {' and '.join(map(str, sizes))}")
        lines += [f"  {_thinned(group)}" for group in axis.groups[:MOST]]
        if len(axis.groups) > MOST:
            lines.append(f"  ... and {len(axis.groups) - MOST} more")
    rows = [
        [
            f"rank {rank}",
            schedule.program(rank).role,
            devices[rank],
            f"node {scenario.cluster().node_of(devices[rank])}",
        ]
        for rank in range(min(schedule.mesh.world_size, 4 * MOST))
    ]
    more = schedule.mesh.world_size - len(rows)
    return "\n".join([*lines, "", plain_text.table(rows), *([f"... and {more} more ranks"] if more else [])])


def _thinned(group: Sequence[int]) -> str:
    if len(group) <= MOST:
        return " ".join(map(str, group))
    return f"{' '.join(map(str, group[: MOST - 2]))} ... {group[-1]}"


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
