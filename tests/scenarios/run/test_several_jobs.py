"""Several jobs on one cluster: closed forms of shared links, symmetry, folding, placements, and wrong input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from clustersim.scenarios.results.jobs_result import JobsResult, ranges
from clustersim.scenarios.run.several_jobs import Jobs, bytes_by_link
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError

GB = 1e9


def cluster(nodes: int = 4, oversubscription: float = 2, radix: int = 3, gpus: int = 1) -> dict[str, Any]:
    """Two leaves of *nodes* / 2 nodes; by default one cable leaves each leaf."""
    node = {"accelerator": "a100_40gb", "accelerators": gpus, "nics": 1, "nic": {"kind": "ib_hdr"}}
    if gpus > 1:
        node["intra"] = {"kind": "nvlink3", "shape": "switch"}
    fabric = {"kind": "fat_tree", "oversubscription": oversubscription, "radix": radix}
    return {"nodes": nodes, "node": node, "fabric": fabric}


def ring(nodes: int | list[int], size: float = GB, **keys: Any) -> dict[str, Any]:
    return {"nodes": nodes, "collective": {"kind": "all_reduce", "size": f"{size} B"}, **keys}


def result(jobs: dict[str, Any], **sections: Any) -> JobsResult:
    scenario = Scenario.model_validate({"version": 1, "cluster": cluster(), "jobs": jobs, **sections})
    found = scenario.run()
    assert isinstance(found, JobsResult)
    return found


@pytest.fixture(scope="module")
def two_rings() -> JobsResult:
    return result({"a": ring([0, 2]), "b": ring([1, 3])}, network={"transport": "ideal"})


def test_two_rings_over_one_uplink_get_half_of_it_each(two_rings: JobsResult) -> None:
    """A ring of two nodes sends 2 (n - 1) / n = 1 vector over its leaf's cable, alone at its full bandwidth."""
    cable = two_rings.tiers[0].cables[0]
    machine = two_rings.scenario.cluster()
    link = machine.links[machine.number(cable.source, cable.target)]
    for job in two_rings.jobs.values():
        assert job.alone == pytest.approx(GB / link.bandwidth, rel=1e-3)
        assert job.together == pytest.approx(2 * GB / link.bandwidth, rel=1e-3)
        assert job.steady
    assert two_rings.fairness == pytest.approx(1.0)


def test_a_ring_that_sends_less_often_gets_its_half_while_both_send() -> None:
    """The short vector is sent at half the bandwidth all the time; the long one as well, since the other never ends."""
    found = result({"a": ring([0, 2]), "b": ring([1, 3], GB / 4)}, network={"transport": "ideal"})
    assert found.jobs["a"].slowdown == pytest.approx(2.0, rel=1e-2)
    assert found.jobs["b"].slowdown == pytest.approx(2.0, rel=1e-2)


def test_who_shares_which_cable_with_whom(two_rings: JobsResult) -> None:
    shared = {(cable.source, cable.target): tier.jobs for tier in two_rings.tiers for cable in tier.cables}
    assert shared == {
        ("leaf 0", "spine 0"): ("a", "b"),
        ("leaf 1", "spine 0"): ("a", "b"),
        ("spine 0", "leaf 0"): ("a", "b"),
        ("spine 0", "leaf 1"): ("a", "b"),
    }
    cable = two_rings.tiers[0].cables[0]
    assert sum(cable.together.values()) == pytest.approx(1.0, abs=0.01)
    assert {name: two_rings.slowdown_by(two_rings.tiers[0], name) for name in "ab"} == pytest.approx(
        {"a": 2.0, "b": 2.0}, rel=1e-2
    )


def test_jobs_that_share_nothing_are_as_alone() -> None:
    found = result({"a": ring([0, 1]), "b": ring([2, 3], GB / 3, start="7 ms")})
    assert found.tiers == ()
    for job in found.jobs.values():
        assert job.together == pytest.approx(job.alone, rel=1e-12)


def test_traffic_from_outside_is_no_job() -> None:
    """It slows down both jobs, but neither shares its way with the other."""
    traffic = [{"from": f"gpu {a}", "to": f"gpu {b}", "rate": "10 GB/s"} for a, b in ((0, 1), (2, 3))]
    network = {"transport": "ideal", "background": traffic}
    jobs = {"a": ring([0, 1]), "b": ring([2, 3])}
    found, quiet = result(jobs, network=network), result(jobs, network={"transport": "ideal"})
    assert found.tiers == ()
    for name, job in found.jobs.items():
        assert job.slowdown == pytest.approx(1.0)
        assert job.alone > 1.5 * quiet.jobs[name].alone


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_equal_jobs_are_symmetric_and_fold(engine: str) -> None:
    """Four rings over one cable each take four times as long; one rank stands for all of them."""
    jobs = {f"job{i}": ring([i, i + 4]) for i in range(4)}
    sections = {"cluster": cluster(8, 4, 5), "network": {"transport": "ideal"}}
    folded = result(jobs, **sections, simulation={"engine": engine})
    assert len(folded.timeline.distinct_ranks) == 1
    assert [job.slowdown for job in folded.jobs.values()] == pytest.approx([4.0] * 4, rel=1e-2)
    assert len({job.together for job in folded.jobs.values()}) == 1


def training(nodes: int, batch: int, **parallelism: Any) -> dict[str, Any]:
    return {
        "nodes": nodes,
        "placement": "scattered",
        "model": {"preset": "gpt2", "num_layers": 2},
        "training": {"global_batch_size": batch, "micro_batch_size": 2},
        "parallelism": parallelism,
    }


def test_folded_equals_unfolded() -> None:
    """Of unlike jobs over common cables: data parallel, sharded with another start, and a pipeline."""
    jobs = {
        "ddp": training(2, 16, data={"method": "ddp"}),
        "zero": {**training(2, 16, data={"method": "zero", "stage": 2}), "start": "13 ms"},
        "pipeline": training(2, 16, tp=2, pp=2),
    }
    sections = {"cluster": cluster(6, 3, 4, gpus=2)}
    runs = []
    for fold in (True, False):
        data = {"version": 1, "jobs": jobs, **sections, "simulation": {"fold": fold, "engine": "simpy"}}
        several = Jobs(Scenario.model_validate(data))
        runs.append((several.simulated(list(jobs), dict.fromkeys(jobs, 4), start=True), several.alone))
    (folded, folded_alone), (whole, whole_alone) = runs
    assert len(folded.timeline.distinct_ranks) < len(whole.timeline.distinct_ranks)
    for name in jobs:
        assert folded.ends[name] == pytest.approx(whole.ends[name], rel=1e-9)
        assert folded_alone[name].ends[name] == pytest.approx(whole_alone[name].ends[name], rel=1e-9)
        assert bytes_by_link(folded_alone[name]) == pytest.approx(bytes_by_link(whole_alone[name]))


def test_a_job_alone_takes_as_long_as_its_scenario() -> None:
    """The job on the first nodes, and the scenario of those nodes: the same step, repeated."""
    job = training(2, 16, data={"method": "ddp"})
    found = result({"a": job, "b": ring(2)})
    sections = {key: job[key] for key in ("model", "training", "parallelism")}
    sections["training"] = {**sections["training"], "steps": 5}
    sections["parallelism"] = {**sections["parallelism"], "placement": [0, 2]}
    alone = Scenario.model_validate(
        {"version": 1, "cluster": cluster(), **sections | {"parallelism": {**sections["parallelism"], "dp": 2}}}
    ).run()
    assert found.jobs["a"].alone == pytest.approx(alone.timeline.step_time, rel=1e-6)


def test_better_placement_is_simulated() -> None:
    jobs = {"a": ring(2, placement="scattered"), "b": ring(2, placement="scattered")}
    found = result(jobs)
    assert found.jobs["a"].nodes == ("0", "2")
    assert found.best is not None
    moved = result({"a": ring([0, 1]), "b": ring([2, 3])})
    assert found.best.together == pytest.approx({name: job.together for name, job in moved.jobs.items()})
    assert "better: placement packed: a on 0-1; b on 2-3" in found.report()


def test_by_leaf_takes_the_leaf_that_holds_the_job() -> None:
    """Nodes 0 and 1 of leaf 0 are taken: three nodes fit leaf 1 alone, and packed they would be on both leaves."""
    jobs = {"a": ring([0, 1]), "b": ring(3, placement="by_leaf"), "c": ring(1, placement="packed")}
    found = Scenario.model_validate({"version": 1, "cluster": cluster(8, 4, 5), "jobs": jobs})
    assert found.jobs["b"].cluster().gpus == ("gpu 4", "gpu 5", "gpu 6")
    assert found.jobs["c"].cluster().gpus == ("gpu 2",)


def test_summary_is_plain_and_the_chart_has_a_panel_for_each_job(two_rings: JobsResult) -> None:
    assert json.loads(json.dumps(two_rings.summary()))["jobs"]["a"]["slowdown"] == pytest.approx(2.0, rel=1e-2)
    figure = two_rings.plot("timeline")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a, rank 0", "b, rank 2"]
    with pytest.raises(ScenarioError, match="has several jobs"):
        two_rings.plot("memory")


def test_the_chart_of_shared_links_stacks_the_shares_of_jobs(two_rings: JobsResult) -> None:
    axes = two_rings.plot("shared_links").axes[0]
    bars = np.array([bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]).reshape(2, -1)
    # alone each ring fills the cable; together each has half of it
    assert bars[:, 0] == pytest.approx([1.0, 1.0], rel=1e-2)
    assert bars[:, 1] == pytest.approx([0.5, 0.5], rel=1e-2)
    assert axes.get_title(loc="left").endswith("shared by a + b")


def test_there_is_no_chart_of_shared_links_without_any() -> None:
    apart = result({"a": ring([0, 1]), "b": ring([2, 3])}, network={"transport": "ideal"})
    with pytest.raises(ScenarioError, match="no two jobs share a link"):
        apart.plot("shared_links")
    with pytest.raises(ScenarioError, match="is one job"):
        Scenario.load("hello").run().plot("shared_links")


def test_ranges() -> None:
    assert ranges(("0", "1", "2", "6", "gpu 9")) == "0-2, 6, gpu 9"


TEXT = """\
version: 1
cluster: {preset: dgx_a100_80gb, nodes: 4}
jobs:
  a:
    nodes: 3
    collective: {kind: all_reduce, size: 1 GB}
  b:
    nodes: 2
    collective: {kind: all_reduce, size: 1 GB}
"""


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        (lambda text: text, ":8:12: jobs.b.nodes: ", "2 nodes are more than the 1 that are free"),
        (lambda text: text.replace("nodes: 2", "nodes: [4]"), ":8:13: jobs.b.nodes.0: ", "there is no node 4"),
        (
            lambda text: text.replace("nodes: 2", "nodes: [1]").replace("nodes: 3", "nodes: [0, 1]"),
            ":8:13: jobs.b.nodes.0: ",
            "node 1 is that of a",
        ),
        (lambda text: text.replace("nodes: 2", "nodes: 0"), ":8:12: jobs.b.nodes", "must be"),
        (
            lambda text: text.replace("nodes: 2\n    collective: {kind", "nodes: 1\n    collective: {knd"),
            ":9:18: jobs.b.collective.knd: ",
            "unknown key",
        ),
        (lambda text: text.replace("nodes: 2", "nodes: 1\n    placed: x"), ":9:5: jobs.b.placed: ", "unknown key"),
        (lambda text: text + "software: torch\n", ":10:11: software: ", "stands beside jobs"),
        (lambda text: text + "network: {fidelity: alpha_beta}\n", ":10:21: network.fidelity: ", "jobs share links"),
    ],
)
def test_bad_input_names_file_line_and_key(
    change: Callable[[str], str], place: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(change(TEXT))
    with pytest.raises(ScenarioError) as error:
        Scenario.load(path)
    assert place in str(error.value)
    assert message in str(error.value)


def test_other_commands_ask_for_one_job() -> None:
    scenario = Scenario.model_validate({"version": 1, "cluster": cluster(), "jobs": {"a": ring(2), "b": ring(2)}})
    with pytest.raises(ScenarioError, match="run, check and plot take several jobs"):
        _ = scenario.derived
    with pytest.raises(ScenarioError, match="take several jobs"):
        scenario.schedule()
    with pytest.raises(ScenarioError, match="take several jobs"):
        scenario.sweep({"jobs.a.nodes": [1, 2]})


def test_ends_of_steps_are_ascending(two_rings: JobsResult) -> None:
    begin, end = two_rings.window
    assert 0 < begin < end
    assert np.isfinite(end)
