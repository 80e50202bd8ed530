"""PXN keeps messages on the rail of their receiver; relays carry what GPUs without a common NVLink exchange."""

import pytest

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError

SIZE = 64e6


def scenario(cluster, kind="all_to_all", engine="compiled", fold=True, **network):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": cluster,
            "collective": {"kind": kind, "size": "64 MB"},
            "network": network,
            "simulation": {"engine": engine, "fold": fold},
        }
    )


RAILS = {"preset": "dgx_a100_80gb", "nodes": 4}
MESH = {"preset": "dgx1", "nodes": 1}


def by_ends(timeline):
    """(kind of the source, kind of the target) -> bytes on all such links."""
    found = {}
    for number, nbytes in timeline.link_bytes.items():
        ends = tuple(name.rpartition(" ")[0] for name in timeline.cluster.ends[number])
        found[ends] = found.get(ends, 0.0) + nbytes * timeline.multiplicity.get(number, 1)
    return found


def test_a_message_to_another_rail_goes_over_nvlink_and_then_stays_on_that_rail():
    cluster = scenario(RAILS, pxn=True).cluster()
    names = [cluster.ends[link][1] for link in cluster.route("gpu 1", "gpu 12")]
    assert names == ["nvswitch 0", "gpu 4", "pcie_switch 2", "nic 4", "leaf 4", "nic 12", "pcie_switch 6", "gpu 12"]
    without = scenario(RAILS).cluster()
    assert "spine 0" in [without.ends[link][1] for link in without.route("gpu 1", "gpu 12")]
    assert cluster.route("gpu 1", "gpu 9") == without.route("gpu 1", "gpu 9")
    assert cluster.route("gpu 1", "gpu 2") == without.route("gpu 1", "gpu 2")


def test_an_all_to_all_leaves_the_spines_idle_and_takes_nvlink_instead():
    """Each of 32 GPUs sends 31 blocks: 7 inside its node, 24 to others, of which 21 to other rails."""
    block = SIZE / 32
    plain, relayed = (by_ends(scenario(RAILS, fold=False, **net).run().timeline) for net in ({}, {"pxn": True}))
    assert plain["leaf", "spine"] == pytest.approx(32 * 21 * block)
    assert ("leaf", "spine") not in relayed
    assert plain["gpu", "nvswitch"] == pytest.approx(32 * 7 * block)
    assert relayed["gpu", "nvswitch"] == pytest.approx(32 * (7 + 21) * block)
    assert relayed["nic", "leaf"] == pytest.approx(plain["nic", "leaf"])


def test_rings_stay_on_their_rails_anyway():
    times = [scenario(RAILS, "all_reduce", pxn=pxn).run().timeline.makespan for pxn in (True, False)]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_spines_with_a_quarter_of_the_bandwidth_make_pxn_worth_it():
    narrow = {**RAILS, "fabric": {"kind": "rail", "oversubscription": 4}}
    plain, relayed = (scenario(narrow, **net).run().timeline.makespan for net in ({}, {"pxn": True}))
    assert plain > 2 * relayed


@pytest.mark.parametrize(
    ("cluster", "network"), [(RAILS, {"pxn": True}), (MESH, {"relay_gpus": True})], ids=["PXN", "relays"]
)
def test_engines_agree_and_folding_is_exact(cluster, network):
    times = [
        scenario(cluster, engine=engine, fold=fold, **network).run().timeline.makespan
        for engine in ("simpy", "compiled")
        for fold in (True, False)
    ]
    assert times == pytest.approx([times[0]] * 4, rel=1e-9)


def test_gpus_of_a_cube_mesh_without_a_common_link_reach_each_other_by_one_gpu():
    cluster = scenario(MESH, relay_gpus=True).cluster()
    plain = scenario(MESH).cluster()
    for a in range(8):
        for b in range(8):
            ends = f"gpu {a}", f"gpu {b}"
            route = cluster.route(*ends) if a != b else ()
            if a != b and not plain.linked(*ends):
                kinds = cluster.kinds_passed(route)
                assert kinds == ["gpu", "gpu"]
                assert all(cluster.links[link].kind == "nvlink2" for link in route)
                assert "host" in plain.kinds_passed(plain.route(*ends)) or "pcie_switch" in plain.kinds_passed(
                    plain.route(*ends)
                )
            elif a != b:
                assert route == plain.route(*ends)


def test_an_all_to_all_on_a_cube_mesh_uses_no_pcie_with_relays():
    plain, relayed = (scenario(MESH, **net).run().timeline for net in ({}, {"relay_gpus": True}))
    assert not any("pcie_switch" in ends for ends in by_ends(relayed))
    assert relayed.makespan < plain.makespan


@pytest.mark.parametrize(
    ("cluster", "network", "told"),
    [
        ({"preset": "zhores", "nodes": 2}, {"pxn": True}, "network.pxn: needs nodes with several NICs"),
        (RAILS, {"pxn": True, "transport": "gloo"}, "network.pxn: belongs to transport nccl"),
        (MESH, {"relay_gpus": "always"}, "network.relay_gpus: must be true or false"),
    ],
    ids=["one NIC", "Gloo", "no flag"],
)
def test_wrong_nodes_are_told(cluster, network, told):
    with pytest.raises(ScenarioError) as error:
        scenario(cluster, **network)
    assert told in str(error.value)
