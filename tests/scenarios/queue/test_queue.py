"""The queue against theory and schedules by hand: waiting, order, reservations, placement, wrong input."""

import heapq
import itertools
from collections.abc import Iterable, Sequence
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clustersim.scenarios.queue.jobs import JobRecord
from clustersim.scenarios.results.jobs_result import QueueResult
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError


def cluster(nodes: int, leaves: int = 2) -> dict[str, Any]:
    """Nodes of one GPU below *leaves*; the bandwidth up of a leaf is that of one node."""
    below = max(1, nodes // leaves)
    fabric = {"kind": "fat_tree", "oversubscription": below, "radix": below + 1} if nodes > 1 else {"kind": "switch"}
    node = {"accelerator": "a100_40gb", "accelerators": 1, "nics": 1, "nic": {"kind": "ib_hdr"}}
    return {"nodes": nodes, "node": node, "fabric": fabric}


def result(nodes: int, arrivals: Any, jobs: dict[str, Any] | None = None, leaves: int = 2, **keys: Any) -> QueueResult:
    sections = {"jobs": jobs, "network": {"transport": "ideal"}} if jobs else {}
    data = {"version": 1, "cluster": cluster(nodes, leaves), "queue": {"arrivals": arrivals, **keys}, **sections}
    found = Scenario.model_validate(data).run()
    assert isinstance(found, QueueResult)
    return found


def table(path: Path, rows: Iterable[Sequence[Any]], header: str = "arrival,nodes,duration") -> str:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


def starts(found: QueueResult) -> list[float | None]:
    return [record.start for record in found.records]


def at_random(servers: int, load: float, jobs: int, **kind: Any) -> QueueResult:
    """Jobs of one minute on the mean that arrive so often that each of the nodes is held for *load* of the time."""
    mix = [{"nodes": 1, "duration": "1 min", **kind}]
    arrivals = {"poisson": f"{servers * load}/min", "jobs": jobs, "seed": 0, "mix": mix}
    return result(servers, arrivals, contention="none")


def erlang_c(servers: int, load: float) -> float:
    """The probability that a job waits in M/M/c. Erlang (1917)."""
    offered = servers * load
    all_held = offered**servers / factorial(servers) / (1 - load)
    return all_held / (sum(offered**k / factorial(k) for k in range(servers)) + all_held)


EXPONENTIAL = {"variation": {"distribution": "gamma", "variation": 1}}


def test_waiting_for_one_node_is_that_of_pollaczek_and_khinchine() -> None:
    """M/D/1: rho / (2 (1 - rho)) service times. The mean of 20,000 jobs at load 0.7 is within some per cent."""
    found = at_random(1, 0.7, 20_000)
    numbers = found.summary()["queue"]
    assert numbers["waiting_s"]["mean"] == pytest.approx(60 * 0.7 / (2 * 0.3), rel=0.05)
    assert numbers["utilisation"] == pytest.approx(0.7, rel=0.02)
    # Little's law holds for any queue
    rate = len(found.records) / found.ran.end
    assert numbers["queue_length"] == pytest.approx(rate * numbers["waiting_s"]["mean"], rel=1e-6)


@pytest.mark.exhaustive
def test_waiting_for_several_nodes_is_that_of_erlang() -> None:
    """M/M/c: the probability of waiting is Erlang's C, the mean waiting time C / (c - c rho) service times.

    Each job starts when the first of four nodes is free, which a heap of four ends tells exactly.
    """
    found = at_random(4, 0.6, 20_000, **EXPONENTIAL)
    waiting = np.array([record.waiting for record in found.records])
    assert np.mean(waiting > 0) == pytest.approx(erlang_c(4, 0.6), rel=0.05)
    assert waiting.mean() == pytest.approx(60 * erlang_c(4, 0.6) / (4 * 0.4), rel=0.08)
    ends = [0.0] * 4
    for record in found.records:
        begin = max(record.submission.arrival, heapq.heappop(ends))
        assert record.start == pytest.approx(begin, abs=1e-6)
        heapq.heappush(ends, begin + record.submission.work)


def test_first_in_first_out_by_hand(tmp_path: Path) -> None:
    """Four nodes. B waits for A, and C, which would fit, waits behind B."""
    rows = [(0, 3, 10), (1, 2, 5), (2, 1, 4), (3, 4, 1)]
    assert starts(result(4, table(tmp_path / "jobs.csv", rows))) == [0, 10, 10, 15]


def test_backfilling_by_hand(tmp_path: Path) -> None:
    """B starts when A ends. C ends before; D takes the node that B and A leave for longer, so that E waits for B."""
    rows = [(0, 3, 10), (1, 2, 5), (2, 1, 4), (3, 1, 20), (3, 1, 3)]
    found = result(4, table(tmp_path / "jobs.csv", rows), policy="backfill")
    assert starts(found) == [0, 10, 2, 6, 10]
    # on five nodes B starts at once, and C and D when it has ended
    found = result(5, table(tmp_path / "jobs.csv", rows), policy="backfill", leaves=1)
    assert starts(found)[:4] == [0, 1, 6, 6]


def test_backfilling_takes_the_nodes_that_the_head_leaves(tmp_path: Path) -> None:
    """B needs 3 of the 4 nodes at time 10; C takes the fourth for longer, D would delay B."""
    rows = [(0, 3, 10), (1, 3, 5), (2, 1, 50), (3, 1, 50)]
    assert starts(result(4, table(tmp_path / "jobs.csv", rows), policy="backfill")) == [0, 10, 2, 15]


def random_rows(seed: int, nodes: int, jobs: int = 30) -> list[tuple[float, int, float]]:
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(4.0, jobs)).round(3)
    sizes, seconds = random.integers(1, nodes + 1, jobs), random.exponential(20.0, jobs).round(3) + 0.001
    return list(zip(times.tolist(), sizes.tolist(), seconds.tolist(), strict=True))


def check_conserved(records: Sequence[JobRecord], nodes: int) -> None:
    """No node is held by two jobs, every job has its nodes for its time, and none starts before it arrives."""
    for record in records:
        assert record.start is not None
        assert record.end == pytest.approx(record.start + record.submission.work)
        assert len(set(record.nodes)) == record.submission.nodes
        assert record.start >= record.submission.arrival
        assert set(record.nodes) <= set(range(nodes))
    for one, other in itertools.combinations(records, 2):
        assert one.start is not None
        assert other.start is not None
        assert one.end is not None
        assert other.end is not None
        if set(one.nodes) & set(other.nodes):
            assert one.end <= other.start or other.end <= one.start


@pytest.mark.parametrize("placement", ["packed", "scattered", "by_leaf", "one_leaf"])
@pytest.mark.parametrize("policy", ["fifo", "backfill"])
def test_no_node_is_held_twice_and_no_promise_is_broken(tmp_path: Path, policy: str, placement: str) -> None:
    """With true time limits, backfilling never starts a job later than promised when it became the first."""
    for seed in range(4):
        path = table(tmp_path / f"{seed}.csv", random_rows(seed, 8))
        found = result(8, path, policy=policy, placement=placement)
        check_conserved(found.records, 8)
        if policy == "fifo":
            assert starts(found) == sorted(starts(found), key=float)  # type: ignore[arg-type]
            continue
        promised = [record for record in found.records if record.reserved is not None]
        assert promised
        assert all(record.start <= record.reserved + 1e-6 for record in promised)  # type: ignore[operator]
        if placement != "one_leaf":
            assert any(one.start > other.start for one, other in itertools.pairwise(found.records))  # type: ignore[operator]


def earliest(rows: Sequence[tuple[float, int, float]], nodes: int) -> list[float]:
    """FIFO by brute force: each job at the first candidate time, not before its predecessor, at which all fit."""
    found: list[tuple[float, float, int]] = []
    begin = 0.0
    for arrival, size, seconds in rows:
        candidates = sorted({max(arrival, begin), *(end for _, end, _ in found if end >= max(arrival, begin))})
        begin = next(
            time
            for time in candidates
            if sum(count for start, end, count in found if start <= time < end) + size <= nodes
        )
        found.append((begin, begin + seconds, size))
    return [start for start, _, _ in found]


def test_first_in_first_out_is_the_earliest_schedule_in_order(tmp_path: Path) -> None:
    for seed in range(8):
        rows = random_rows(seed, 5, 12)
        found = starts(result(5, table(tmp_path / f"{seed}.csv", rows), leaves=1))
        assert found == pytest.approx(earliest(rows, 5))


def test_one_leaf_waits_beside_enough_free_nodes(tmp_path: Path) -> None:
    """Two nodes are free below two leaves. by_leaf starts the job there, one_leaf waits until one leaf has both."""
    spread = result(6, table(tmp_path / "more.csv", [(0, 2, 10), (0, 2, 20), (1, 2, 5)]), placement="by_leaf")
    held = result(6, str(tmp_path / "more.csv"), placement="one_leaf")
    assert (starts(spread)[2], starts(held)[2]) == (1, 10)
    assert spread.records[2].leaves == 2
    own = held.summary()["queue"]["fragmentation"]
    assert own["time_head_waits_beside_enough_free_nodes"] * held.ran.end == pytest.approx(9)
    assert own["free_nodes_while_head_waits"] == pytest.approx(2)
    assert own["leaves_of_free_nodes_while_head_waits"] == pytest.approx(2)


def ring(nodes: int) -> dict[str, Any]:
    return {"nodes": nodes, "collective": {"kind": "all_reduce", "size": "1 GB"}}


@pytest.mark.parametrize("contention", ["pairs", "together", "none"])
def test_rings_over_one_uplink_are_slowed_down_while_they_run_together(tmp_path: Path, contention: str) -> None:
    """Three rings over one cable, of 200, 200 and 100 repetitions: all take three times as long, then two twice.

    The third ends after 300 times the time alone; the others then have 100 left, and end after 500.
    """
    path = table(tmp_path / "jobs.csv", [(0, "a", 200), (0, "a", 200), (0, "a", 100)], "arrival,job,steps")
    found = result(6, path, {"a": ring(2)}, placement="scattered", contention=contention)
    alone = found.records[0].compact / 200
    assert alone == pytest.approx(found.records[0].alone / 200, rel=1e-2)
    ends = [record.end / alone for record in found.records if record.end is not None]
    assert ends == pytest.approx([200, 200, 100] if contention == "none" else [500, 500, 300], rel=2e-2)
    assert ends[0] == ends[1]
    parts = found.gpu_seconds
    assert sum(parts.values()) == pytest.approx(6 * found.ran.end)
    assert parts["useful"] == pytest.approx(2 * 500 * alone, rel=1e-2)
    assert parts["shared_links"] == pytest.approx(0 if contention == "none" else 2 * 800 * alone, rel=2e-2, abs=1e-9)


def test_jobs_below_one_leaf_share_nothing(tmp_path: Path) -> None:
    path = table(tmp_path / "jobs.csv", [(0, "a", 50), (0, "a", 50)], "arrival,job,steps")
    found = result(4, path, {"a": ring(2)})
    assert [record.leaves for record in found.records] == [1, 1]
    assert starts(found) == [0, 0]
    assert [found.row(record)["slowdown_by_shared_links"] for record in found.records] == pytest.approx([1.0, 1.0])
    assert found.effort.simulations == 1


def test_horizon_and_gpus(tmp_path: Path) -> None:
    """At 12 s one job has ended, one is half done, and one still waits; a job of 3 GPUs uses 3 of 4."""
    path = table(tmp_path / "jobs.csv", [(0, 3, 8), (1, 2, 8), (2, 4, 9)], "arrival,gpus,duration")
    found = result(4, path, horizon="12 s")
    numbers = found.summary()["queue"]
    assert (numbers["arrived"], numbers["started"], numbers["ended"]) == (3, 2, 1)
    assert found.records[1].done == pytest.approx(0.5)
    assert numbers["goodput"] == pytest.approx((3 * 8 + 2 * 4) / (4 * 12))
    assert "still wait" in found.report()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("arrival,nodes,duration\n0,5,1\n", "jobs.csv:2: 5 nodes are more than the 4 of the cluster"),
        ("arrival,nodes\n0,1\n", 'jobs.csv:1: needs a column "job"'),
        ("nodes,duration\n1,1\n", 'jobs.csv:1: needs a column "arrival"'),
        ("arrival,nodes,duration\n0,1,1\n1,1,soon\n", "jobs.csv:3: duration must be a number of seconds"),
        ("arrival,nodes,duration\n0,1.5,1\n", "jobs.csv:2: nodes must be a whole number"),
        ("arrival,nodes,duration\n-1,1,1\n", "jobs.csv:2: arrival must be at least 0, not -1"),
        ("arrival,nodes,duration\n0,1,nan\n", "jobs.csv:2: duration must be above 0, not nan"),
        ("arrival,job,steps\n0,b,1\n", 'jobs.csv:2: there is no job "b"; there are a'),
        ("arrival,job,steps\n0,a,\n", "jobs.csv:2: needs steps"),
        ("arrival,nodes,duration\n", "has no row below its header"),
    ],
)
def test_wrong_files_are_told_with_their_lines(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    with pytest.raises(ScenarioError) as raised:
        result(4, str(path), {"a": ring(2)})
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("queue", "told"),
    [
        ({"policy": "sjf"}, "queue.policy"),
        ({"placement": "worst_fit"}, "queue.placement"),
        ({"arrivals": {"poisson": "12", "jobs": 1, "mix": [{"nodes": 1, "duration": "1 s"}]}}, "12/h"),
        ({"arrivals": {"poisson": "1/h", "jobs": 1, "mix": [{"job": "b", "steps": 1}]}}, 'there is no job "b"'),
        ({"arrivals": {"poisson": "1/h", "jobs": 1, "mix": [{"nodes": 9, "duration": "1 s"}]}}, "9 nodes are more"),
        ({"arrivals": {"poisson": "1/h", "jobs": 1, "mix": [{"job": "a"}]}}, "steps: is required beside job"),
        ({"arrivals": "nowhere.csv"}, "nowhere.csv"),
    ],
)
def test_wrong_queues_are_told_with_their_keys(tmp_path: Path, queue: dict[str, Any], told: str) -> None:
    arrivals = table(tmp_path / "jobs.csv", [(0, 1, 1)])
    with pytest.raises(ScenarioError) as raised:
        result(4, **{"arrivals": arrivals, "jobs": {"a": ring(2)}, **queue})
    assert told in str(raised.value)


def test_a_job_of_the_queue_has_no_place_or_start(tmp_path: Path) -> None:
    arrivals = table(tmp_path / "jobs.csv", [(0, 1, 1)])
    for keys, told in (({"start": "1 s"}, "jobs.a.start"), ({"nodes": [0, 1]}, "jobs.a.nodes")):
        with pytest.raises(ScenarioError, match=told):
            result(4, arrivals, {"a": {**ring(2), **keys}})
    with pytest.raises(ScenarioError, match="9 nodes are more than the 4"):
        result(4, arrivals, {"a": ring(9)})


def test_variants_and_sweeps_compare_policies(tmp_path: Path) -> None:
    """FIFO lets the last job wait for 8 s, backfilling does not. A row of a sweep has no numbers of jobs."""
    path = table(tmp_path / "jobs.csv", [(0, 3, 10), (1, 2, 5), (2, 1, 4)])
    variants = {policy: {"queue.policy": policy} for policy in ("fifo", "backfill")}
    data = {"version": 1, "cluster": cluster(4), "queue": {"arrivals": path}}
    found = Scenario.model_validate({**data, "variants": variants}).run()
    waiting = {name: one.summary()["queue"]["waiting_s"]["mean"] for name, one in found.runs.items()}
    assert waiting == pytest.approx({"fifo": (9 + 8) / 3, "backfill": 9 / 3})
    assert "backfill" in found.report()
    sweep = Scenario.model_validate(data).sweep({"queue.policy": ["fifo", "backfill"]})
    rows = sweep.table()
    assert [row["queue.waiting_s.mean"] for row in rows] == pytest.approx(list(waiting.values()))
    assert not any(column.startswith("queue.jobs") for column in sweep.columns)
    assert "* best queue.waiting_s.mean" in sweep.report()


def test_charts_and_table_of_jobs(tmp_path: Path) -> None:
    """Each job has a box for each run of neighbouring nodes; waiting jobs and held nodes are drawn to the end."""
    found = result(4, table(tmp_path / "jobs.csv", [(0, 3, 10), (1, 2, 5), (2, 1, 4)]))
    (axes,) = found.plot("timeline").axes
    assert len(axes.collections[0].get_paths()) == sum(len(runs(record.nodes)) for record in found.records)
    assert {text.get_text() for text in axes.texts} <= {"job 0", "job 1", "job 2"}
    held, waiting = found.plot("queue").axes
    assert held.get_xlim() == waiting.get_xlim() == (0.0, found.ran.end)
    lines = found.jobs_table().splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("job 1,duration,2,2,1.0,10.0,15.0,9.0,5.0")
    with pytest.raises(ScenarioError, match="is a queue of jobs"):
        found.plot("links")


def runs(nodes: Sequence[int]) -> list[int]:
    return [node for node in nodes if node - 1 not in nodes]
