"""Conservation: bytes on links, capacity of links, and the time of ranks add up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain
from math import inf
from typing import Any

import numpy as np
import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.run.running import simulated
from clustersim.scenarios.specification.loading import SHIPPED, shipped
from clustersim.simulator.analysis import metrics, network_traffic
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.engine.folding.non_binding import ragged_arange
from clustersim.simulator.hardware.links import Floats
from clustersim.simulator.network.candidates import GroupTopology
from clustersim.simulator.network.library import tuner
from clustersim.simulator.network.library.calibration_file import transport
from clustersim.simulator.network.routes import connection
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.simulator.schedule.mesh import family
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Op, Send
from clustersim.simulator.schedule.schedule import Schedule
from tests.samples import sample
from tests.shipped import HEAVY

LEAST_SENT: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2.0 * (ranks - 1),
    "all_gather": lambda ranks: ranks - 1.0,
    "reduce_scatter": lambda ranks: ranks - 1.0,
    "broadcast": lambda ranks: ranks - 1.0,
    "reduce": lambda ranks: ranks - 1.0,
    "all_to_all": lambda ranks: ranks - 1.0,
    "gather": lambda ranks: (ranks - 1) / ranks,
    "scatter": lambda ranks: (ranks - 1) / ranks,
}
"""Lower bounds, in full vectors, of what all ranks of a collective send together, if no switch reduces or multiplies.
For all but all-to-all: Chan et al., "Collective communication: theory, practice, and experience" (2007), section 3,
summed over the ranks."""

SWITCHED = {"sharp", "nvls_sharp", "nvls_tree"}
"""Algorithms by which a link carries once what several ranks send."""

Case = tuple[str, str]
"""(name of a shipped scenario, name of a variant or an empty text)."""

CASES: list[Case] = [
    (name, variant) for name in shipped() for variant in read(SHIPPED / f"{name}.yaml").data.get("variants") or ("",)
]

SMALLER: dict[str, dict[str, Any]] = {
    "gpt3_175b_1024a100": {"cluster.nodes": 16, "training.global_batch_size": 16, "model.num_layers": 16},
    "bloom_176b_384a100": {
        "cluster.nodes": 4,
        "training.global_batch_size": 32,
        "model.num_layers": 14,
        "parallelism.pp": 4,
        "parallelism.dp": 2,
    },
    "megascale_175b_12288a100": {
        "cluster.nodes": 8,
        "training.global_batch_size": 16,
        "model.num_layers": 12,
        "parallelism.pp": 2,
        "parallelism.dp": 4,
    },
    "megatron_1t_3072a100": {
        "cluster.nodes": 8,
        "training.global_batch_size": 16,
        "model.num_layers": 8,
        "parallelism.pp": 4,
        "parallelism.dp": 2,
    },
    "llama3_405b_campaign": {
        "cluster.nodes": 8,
        "training.global_batch_size": 16,
        "model.num_layers": 14,
        "parallelism.pp": 4,
        "parallelism.virtual_stages": 2,
    },
    "llama2_7b_tpu_v5e": {
        "cluster.node.accelerators": 16,
        "cluster.node.intra.dims": [4, 4],
        "cluster.node.sockets": 4,
        "cluster.node.nics": 4,
        "training.global_batch_size": 32,
        "parallelism.data.hybrid": 16,
        "model.num_layers": 4,
    },
    "llama3_70b_fp8_64h100": {"training.global_batch_size": 32, "model.num_layers": 40},
    "local_steps_slow_network": {"training.global_batch_size": 256, "model.num_layers": 6},
    "zeropp_384v100": {"cluster.nodes": 4, "training.global_batch_size": 64, "model.num_layers": 4},
    "mt_nlg_530b": {
        "cluster.nodes": 8,
        "training.global_batch_size": 16,
        "model.num_layers": 8,
        "parallelism.pp": 4,
        "parallelism.dp": 2,
    },
}
"""Changes that make large scenarios small, so that all ranks can be simulated unfolded in seconds."""


@cache
def whole(name: str, fold: bool) -> Scenario:
    scenario = Scenario.load(name, {"simulation.fold": fold, **SMALLER.get(name, {})})
    assert len(scenario.derived.devices) <= 128, "tell in SMALLER how to cut it down"
    return scenario


def loaded(case: Case, fold: bool) -> Scenario:
    name, variant = case
    scenario = whole(name, fold)
    assert bool(variant) == bool(scenario.variants)
    return scenario.variants[variant] if variant else scenario


@cache
def schedules(case: Case) -> list[Schedule]:
    """The schedule of the step, and that of the broadcast before it if there is one, for folded and unfolded runs."""
    scenario = loaded(case, fold=True)
    return [schedule for schedule in (scenario.schedule(), scenario.initial()) if schedule is not None]


@cache
def timelines(case: Case, fold: bool) -> tuple[Timeline, ...]:
    """The timelines of the `schedules`."""
    return tuple(simulated(loaded(case, fold), schedule) for schedule in schedules(case))


UNFOLDED = ("gpt3_175b_1024a100", "gpt3_175b_one_a100", *HEAVY)
"""Scenarios that take seconds if no ranks are folded."""

SLOW = [("zhores_vgg16_parameter_server_vs_ring", "server_per_node"), ("alexnet_pr_pc", "4 x 32, images cut")]
"""Cases of thousands of transfers like those of their neighbours."""

every_case = pytest.mark.parametrize(
    "case",
    sample(CASES, 6, heavy=[case for case in CASES if case[0] in UNFOLDED or case in SLOW]),
    ids=lambda case: "-".join(filter(None, case)),
)
both_ways = pytest.mark.parametrize("fold", [False, True], ids=["unfolded", "folded"])


def expected_bytes(scenario: Scenario, timeline: Timeline) -> dict[int, float]:
    """Bytes by link: each transfer of each op is counted on each link of its paths, and then those of another job."""
    cluster, schedule, devices = scenario.cluster(), timeline.schedule, timeline.devices
    total: defaultdict[int, float] = defaultdict(float)
    for (source, target, group), nbytes in transfers(scenario, schedule, timeline).items():
        if devices[source] != target:
            paths = cluster.paths(devices[source], target, group)
            for link in chain.from_iterable(paths):
                total[link] += nbytes * schedule.steps / len(paths)
    copies = [[op for op in program.ops if isinstance(op, Copy)] for program in schedule.programs]
    for device, program in zip(devices, schedule.program_of, strict=True):
        for op in copies[program]:
            for link in cluster.copy_path(device, op.source, op.to):
                total[link] += op.nbytes * schedule.steps
    for one in scenario.specification.network.background:
        route = cluster.route(one.source, one.target)
        # what the job does not explain on the first link is on all links of the other job's way
        others = timeline.link_bytes.get(route[0], 0.0) - total.get(route[0], 0.0)
        seconds = min(one.end or inf, timeline.makespan) - min(one.begin, timeline.makespan)
        assert -1e-3 <= others <= one.rate * seconds * (1 + 1e-9)
        for link in route if others else ():
            total[link] += others
    return dict(total)


def transfers(scenario: Scenario, schedule: Schedule, timeline: Timeline) -> dict[tuple[int, str, int], float]:
    """Bytes by (sending rank, receiving device, connections of a group)."""
    total: defaultdict[tuple[int, str, int], float] = defaultdict(float)
    distinct, devices = [counted(program.ops) for program in schedule.programs], list(timeline.devices)
    for rank, index in enumerate(schedule.program_of):
        for op, times in distinct[index]:
            sent = list(moved(scenario, timeline, op, rank))
            if isinstance(op, Collective) and sent:
                group = connection([devices[one] for one in members(schedule, op, rank)])
                for source, target, nbytes in sent:
                    total[source, target, group] += nbytes * times
            elif isinstance(op, Send):
                for source, target, nbytes in sent:
                    total[source, target, connection([devices[source], target])] += nbytes * times
    return total


def members(schedule: Schedule, op: Collective, rank: int) -> Sequence[int]:
    """The ranks of the group of *op* that *rank* is in."""
    axis = schedule.mesh.axes[op.over]
    place = axis.place(rank)
    assert place is not None
    return axis.groups[place[0]]


def counted(ops: Iterable[Op]) -> list[tuple[Op, int]]:
    """The ops that move bytes, one of those that are equal in what they move, and the number of these."""
    found: dict[tuple[object, ...], list[Op]] = {}
    for op in ops:
        if isinstance(op, Collective | Send):
            told = (getattr(op, name, None) for name in ("kind", "over", "nbytes", "root", "algorithm", "peer"))
            found.setdefault((type(op), *told), []).append(op)
    return [(same[0], len(same)) for same in found.values()]


def moved(scenario: Scenario, timeline: Timeline, op: Op, rank: int) -> Iterable[tuple[int, str, float]]:
    """(sender, receiving device, bytes) of the transfers of *op*; of a collective at the first rank of its group."""
    if not isinstance(op, Collective | Send):
        return
    axis = timeline.schedule.mesh.axes[op.over]
    place = axis.place(rank)
    assert place is not None
    ranks = axis.groups[place[0]]
    if isinstance(op, Send):
        yield rank, timeline.devices[ranks[op.peer]], op.nbytes
    elif place[1] == 0 and op.nbytes and len(ranks) > 1:
        devices = [timeline.devices[one] for one in ranks]
        library = transport(scenario.specification.network.transport)
        group = GroupTopology(scenario.cluster(), devices, library).group
        algorithm, _ = timeline.algorithms[family(op.over), op.kind, op.nbytes]
        for step in tuner.steps(algorithm, op.kind, group, op.nbytes, op.root):
            for sender, receiver in step.transfers:
                yield ranks[sender], devices[receiver], step.nbytes * step.repeat


@every_case
@both_ways
def test_bytes_on_each_link_follow_from_the_schedule(case: Case, fold: bool) -> None:
    for timeline in timelines(case, fold):
        if {algorithm for algorithm, _ in timeline.algorithms.values()} & SWITCHED:
            pytest.skip("switches add and copy; tests/scenarios/test_sharp.py counts their bytes")
        expected = expected_bytes(loaded(case, fold), timeline)
        carried = {link: nbytes for link, nbytes in timeline.link_bytes.items() if nbytes}
        # in a folded run, one link represents all links of its class, and its multiplicity counts them
        assert carried == pytest.approx({link: expected[link] for link in carried}, rel=1e-9)
        everywhere = [nbytes for link, nbytes in carried.items() for _ in range(timeline.multiplicity.get(link, 1))]
        assert sorted(everywhere) == pytest.approx(sorted(expected.values()), rel=1e-9)
        # the integral of the load of each link over time, as exact as the time: a double of 10 s is exact to 2e-15 s,
        # in which 300 GB/s carry 6e-4 B
        assert network_traffic.carried(timeline) == pytest.approx(carried, rel=1e-9, abs=1e-3)


@every_case
@both_ways
def test_only_folded_ranks_represent_others(case: Case, fold: bool) -> None:
    for timeline in timelines(case, fold):
        assert sorted(timeline.columns) == list(timeline.classes)
        assert fold or (len(timeline.columns) == timeline.world_size and not timeline.multiplicity)


@every_case
@both_ways
def test_ranks_send_at_least_the_lower_bound(case: Case, fold: bool) -> None:
    for timeline in timelines(case, fold):
        least, sent = least_bytes(timeline.schedule), network_traffic.by_axis(timeline)
        runs = timeline.steps_run / timeline.schedule.steps  # a program may have several steps
        assert all(sent[axis] * runs >= nbytes * (1 - 1e-9) for axis, nbytes in least.items())


@every_case
@both_ways
def test_no_link_carries_more_than_its_bandwidth_at_any_time(case: Case, fold: bool) -> None:
    for timeline in timelines(case, fold):
        assert timeline.link_use is not None
        (flow, begin, end, rate), (starts, links, crossings) = timeline.link_use
        assert (begin < end).all()
        assert len(flow) or timeline.world_size == 1
        # of each interval the links, one after the other
        counts = starts[flow + 1] - starts[flow]
        each, place = np.repeat(np.arange(len(flow)), counts), ragged_arange(starts[flow], counts)
        taken = rate[each] * crossings[place]
        link, time, change = (
            np.tile(links[place], 2),
            np.concatenate([end[each], begin[each]]),
            np.concatenate([-taken, taken]),
        )
        # by link and time; at one time, ends are counted before begins
        order = np.lexsort((change, time, link))
        load, link = np.cumsum(change[order]), link[order]
        first = np.flatnonzero(np.diff(link, prepend=-1))
        load -= np.repeat(load[first] - change[order][first], np.diff(first, append=len(link)))
        assert timeline.cluster is not None
        assert (load <= timeline.cluster.bandwidths_of(link) * (1 + 1e-9)).all()


def least_bytes(schedule: Schedule) -> dict[str, float]:
    """Lower bounds of the bytes that all ranks together send while each runs its program once, by family of axis."""
    total = dict.fromkeys(metrics.families(schedule), 0.0)
    moving = [[op for op in program.ops if isinstance(op, Collective | Send)] for program in schedule.programs]
    for name, axis in schedule.mesh.axes.items():
        own = [[op for op in ops if op.over == name] for ops in moving]
        for group in axis.groups:
            for op in own[schedule.program_of[group[0]]]:
                if isinstance(op, Collective):
                    total[family(name)] += LEAST_SENT[op.kind](len(group)) * op.nbytes
            for rank in group:
                sends = (op for op in own[schedule.program_of[rank]] if isinstance(op, Send))
                total[family(name)] += sum(op.nbytes for op in sends)
    return total


def covered(begin: Floats, end: Floats) -> float:
    """The length of the union of the intervals from *begin* to *end*, s."""
    order = np.argsort(begin)
    begin, end = begin[order], end[order]
    reached = np.maximum.accumulate(np.concatenate([[0.0], end]))[:-1]
    return float(np.maximum(end - np.maximum(begin, reached), 0.0).sum())


def computes(op: Op) -> bool:
    """True for a computation on the GPU, or by the cores of its host."""
    return isinstance(op, Compute) or (isinstance(op, Copy) and op.on_cores)


@every_case
@both_ways
def test_computing_exposed_communication_and_bubble_make_up_the_step_of_every_rank(case: Case, fold: bool) -> None:
    timeline = timelines(case, fold)[0]
    begin, end = timeline.window
    steps, schedule = timeline.steps_measured, timeline.schedule
    works_of = [np.array([computes(op) for op in program.ops], np.bool_) for program in schedule.programs]
    for rank, columns in timeline.columns.items():
        parts = metrics.rank_breakdown(timeline, rank)
        computing = sum(parts[name] for name in ("compute", "recompute", "optimizer"))
        bubble = parts["bubble"]
        exposed = sum(seconds for name, seconds in parts.items() if name.startswith("exposed_") or name == "copy")
        exposed += parts.get("host", 0.0)
        assert computing + exposed + bubble == pytest.approx(timeline.step_time, rel=1e-9)
        # each part follows from the spans, clipped to the window in which metrics are taken
        inside, works = (columns.begin < end) & (columns.end > begin), works_of[schedule.program_of[rank]][columns.op]
        begins, ends = np.maximum(columns.begin, begin), np.minimum(columns.end, end)
        busy = covered(begins[inside], ends[inside]) / steps
        assert computing == pytest.approx(covered(begins[inside & works], ends[inside & works]) / steps)
        assert bubble == pytest.approx(timeline.step_time - busy, rel=1e-9, abs=1e-9 * timeline.step_time)
