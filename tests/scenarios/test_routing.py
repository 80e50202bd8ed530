"""Routing by connection: a collective is as slow as its fullest cable, the same on both engines, folded or not."""

from collections import Counter

import pytest

from clustersim.scenarios.build.built import clusters
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.network.routes import connection
from clustersim.simulator.reading.errors import ScenarioError

NODES = {
    "version": 1,
    "cluster": {"preset": "dgx_a100_80gb", "nodes": 4, "fabric": {"kind": "fat_tree"}},
    "collective": {"kind": "all_reduce", "size": "1 GB"},
}


def scenario(routing, engine="compiled", fold=True, **network):
    data = {**NODES, "network": {"routing": routing, **network}, "simulation": {"engine": engine, "fold": fold}}
    return Scenario.model_validate(data)


def seconds(one):
    return one.run().summary()["collective"][0]["time_s"]


def test_packets_spread_evenly_are_the_default_and_static_routes_collide_nowhere():
    assert seconds(scenario("adaptive")) == seconds(scenario("auto"))
    assert seconds(scenario("static")) == pytest.approx(seconds(scenario("auto")), rel=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_ring_is_as_slow_as_the_fullest_of_its_cables(seed):
    """Eight rings, each by one NIC of every node, with one queue pair: the flows on a cable are counted one by one."""
    one = scenario("ecmp", seed=seed, queue_pairs=1)
    cluster, devices = one.cluster(), one.derived.devices
    rings = scenario("auto").run().timeline
    sent = [ends for ends in ring_hops(one) if cluster.node_of(ends[0]) != cluster.node_of(ends[1])]
    load = Counter(link for ends in sent for link in cluster.paths(*ends, connection(devices))[0])
    most = max(load[link] for link in cluster.cables)
    timeline = one.run().timeline
    assert timeline.makespan == pytest.approx(rings.makespan * most, rel=0.02)
    by_cable = {link: nbytes for link, nbytes in timeline.link_bytes.items() if link in cluster.cables}
    assert max(by_cable.values()) / min(by_cable.values()) == pytest.approx(most)


def ring_hops(one):
    """The (sender, receiver) of every hop of every ring."""
    from clustersim.scenarios.run.running import communicator

    network = communicator(one)
    topology = network.topology(tuple(range(one.derived.ranks)))
    for ring in topology.group.channels:
        order = [topology.devices[place] for place in ring]
        yield from zip(order, order[1:] + order[:1], strict=True)


@pytest.mark.parametrize("routing", ["ecmp", "static"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all"])
def test_engines_agree_and_folding_is_exact(routing, kind):
    options = {"seed": 5} if routing == "ecmp" else {}
    runs = []
    for engine in ("simpy", "compiled"):
        for fold in (True, False):
            data = {
                **NODES,
                "collective": {"kind": kind, "size": "64 MB"},
                "network": {"routing": routing, **options},
                "simulation": {"engine": engine, "fold": fold},
            }
            runs.append(Scenario.model_validate(data).run().timeline)
    for timeline in runs[1:]:
        assert timeline.makespan == pytest.approx(runs[0].makespan, rel=1e-9)
        assert cable_bytes(timeline) == pytest.approx(cable_bytes(runs[0]))


def cable_bytes(timeline):
    return sum(
        nbytes * timeline.multiplicity.get(link, 1)
        for link, nbytes in timeline.link_bytes.items()
        if link in timeline.cluster.cables
    )


def test_every_routing_sends_the_same_bytes_over_the_cables():
    adaptive = cable_bytes(scenario("adaptive").run().timeline)
    for routing in ("ecmp", "static"):
        assert cable_bytes(scenario(routing).run().timeline) == pytest.approx(adaptive)


def test_the_result_tells_how_uneven_the_cables_are():
    result = scenario("ecmp").run()
    cables = result.summary()["cables"]
    assert cables["cables"] == 2 * 2 * 16
    assert cables["max_over_mean"] > 1.2
    assert "carry bytes; the fullest, " in result.report()
    assert "cables" not in scenario("auto").run().summary()
    even = scenario("static").run().summary()["cables"]
    assert even["max_over_mean"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("network", "told"),
    [
        ({"routing": "random"}, "network.routing"),
        ({"routing": "static", "seed": 3}, "network.seed: belongs to routing ecmp, but routing is static"),
        ({"queue_pairs": 4}, "network.queue_pairs: belongs to routing ecmp, but routing is auto"),
        ({"routing": "ecmp", "queue_pairs": 0}, "network.queue_pairs: must be at least 1"),
    ],
    ids=["unknown", "seed without a hash", "queue pairs without a hash", "none"],
)
def test_wrong_routing_is_told(network, told):
    with pytest.raises(ScenarioError) as error:
        Scenario.model_validate({**NODES, "network": network})
    assert told in str(error.value)


def test_a_cluster_with_one_path_cannot_choose():
    data = {**NODES, "cluster": {**NODES["cluster"], "fabric": {"kind": "torus"}}, "network": {"routing": "ecmp"}}
    with pytest.raises(ScenarioError, match=r"network\.routing: ecmp needs equal-cost paths"):
        Scenario.model_validate(data)


def test_the_topology_that_is_shown_has_the_cables_of_its_routing():
    shown = clusters("ecmp_collisions")
    spines = {name: cluster.vertices.of_kind("spine").size for name, cluster in shown.items()}
    assert spines == {"adaptive": 1, "static": 16, "ecmp": 16, "ecmp, 16 queue pairs": 16}


@pytest.mark.parametrize("network", [{"routing": "ecmp"}, {"routing": "static", "pxn": True}, {"pxn": True}])
def test_a_step_with_several_axes_is_the_same_on_both_engines_folded_or_not(network):
    data = {
        "version": 1,
        "cluster": {"preset": "dgx_a100_80gb", "nodes": 4, "fabric": {"kind": "fat_tree", "oversubscription": 2}},
        "model": {"preset": "gpt2_medium", "num_layers": 4, "seq_length": 512},
        "training": {"global_batch_size": 16, "micro_batch_size": 1},
        "parallelism": {"tp": 2, "pp": 2, "data": {"method": "ddp"}},
        "network": {**network, "background": [{"from": "gpu 0", "to": "gpu 31", "rate": "10 GB/s", "begin": "1 ms"}]},
    }
    times = [
        Scenario.model_validate({**data, "simulation": {"engine": engine, "fold": fold}}).run().timeline.makespan
        for engine in ("simpy", "compiled")
        for fold in (True, False)
    ]
    assert times == pytest.approx([times[0]] * 4, rel=1e-9)
