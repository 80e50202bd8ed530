"""TCP between nodes: payload of frames, the way by the host's memory, limits of a core, a connection and a window."""

import pytest

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.hardware.links import ONE_CORE, PAYLOAD, STACK, WINDOW
from clustersim.simulator.reading.errors import ScenarioError

SIZE = 100e6


def scenario(nic, kind="all_reduce", size="100 MB", nodes=2, cluster=None, **network):
    node = {
        "accelerator": "v100_16gb",
        "accelerators": 1,
        "host": {"kind": "pcie5"},
        "nic": {"kind": "eth_10", **nic},
    }
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": cluster or {"nodes": nodes, "node": node, "fabric": {"kind": "switch"}},
            "collective": {"kind": kind, "size": size},
            "network": network,
        }
    )


def seconds(nic, *rest, **more):
    return scenario(nic, *rest, **more).run().timeline.makespan


def test_the_default_is_rdma():
    assert seconds({"protocol": "rdma"}) == seconds({})
    assert seconds({"protocol": "tcp"}) != seconds({})


def test_a_frame_of_1500_bytes_carries_1448():
    """A ring of two sends the vector once each way."""
    rate = 10e9 / 8 * PAYLOAD
    assert seconds({"protocol": "tcp"}) == pytest.approx(SIZE / rate, rel=0.02)


@pytest.mark.parametrize(("transport", "cores"), [("nccl", 2), ("gloo", 1)])
def test_a_fast_nic_carries_what_the_cores_copy(transport, cores):
    rate = cores * ONE_CORE
    found = seconds({"kind": "eth_400", "protocol": "tcp"}, size="1 GB", transport=transport)
    assert found == pytest.approx(1e9 / rate, rel=0.05)
    assert found > 1.5 * seconds({"kind": "eth_400"}, size="1 GB", transport="nccl")


@pytest.mark.parametrize("sockets", [1, 4])
def test_a_window_passes_once_in_a_round_trip(sockets):
    """Two channels of NCCL; two links of 25 ms one way."""
    network = {"sockets": sockets} if sockets > 1 else {}
    found = seconds({"protocol": "tcp", "latency": "25 ms"}, "broadcast", size="1 GB", **network)
    rate = 2 * sockets * WINDOW / 0.1
    assert found == pytest.approx(1e9 / min(rate, 1.25e9 * PAYLOAD), rel=0.2)


def test_one_connection_has_a_limit_of_its_own_and_several_have_more():
    nic = {"protocol": "tcp", "stream_bandwidth": "1 Gb/s"}
    gloo = seconds(nic, transport="gloo")
    assert gloo == pytest.approx(SIZE / 125e6, rel=0.02)
    assert seconds(nic) == pytest.approx(gloo / 2, rel=0.02)
    assert seconds(nic, sockets=8) == pytest.approx(seconds({"protocol": "tcp"}), rel=0.02)


def test_a_message_passes_the_stack_at_both_ends():
    added = seconds({"protocol": "tcp"}, size="8 B") - seconds({}, size="8 B")
    assert 2 * STACK * 0.9 < added < 2 * 2 * STACK * 1.1


@pytest.mark.parametrize("delay", [0.0, 2e-3, 20e-3])
def test_segments_of_gloo_wait_for_the_readiness_of_the_receiver(delay):
    """Two of 1 MiB are under way: the second follows while the first and the word of its receiver travel."""
    rate = min(125e6 * PAYLOAD, WINDOW / (2 * delay)) if delay else 125e6 * PAYLOAD
    segment, size = 2.0**20, 64 * 2.0**20
    nic = {"protocol": "tcp", "bandwidth": "1 Gb/s", "latency": f"{delay / 2} s"}
    found = seconds(nic, nodes=4, size=f"{size:.0f} B", transport="gloo")
    sending = segment / rate
    cycle = max(2 * sending, sending + 2 * delay)
    segments = 2 * 3 / 4 * size / segment
    assert found == pytest.approx(segments / 2 * cycle, rel=0.05)


def test_bytes_pass_the_memory_of_the_host():
    node = {"nics": 8, "nic": {"kind": "eth_200", "protocol": "tcp"}}
    cluster = {"preset": "dgx_a100_80gb", "nodes": 2, "fabric": {"kind": "fat_tree"}}
    direct = scenario({}, cluster=cluster).cluster()
    staged = scenario({}, cluster={**cluster, "node": node}).cluster()
    assert "host" not in direct.kinds_passed(direct.route("gpu 0", "gpu 8"))
    kinds = staged.kinds_passed(staged.route("gpu 0", "gpu 8"))
    assert kinds.count("host") == 2
    assert kinds[: kinds.index("nic")] == ["pcie_switch", "host", "pcie_switch"]
    assert "host" not in staged.kinds_passed(staged.route("gpu 0", "gpu 1"))


def test_nccl_sees_no_delay_when_it_chooses():
    near, far = (
        scenario({"protocol": "tcp", "latency": latency}, nodes=4, sockets=16).run().summary()["collective"][0]
        for latency in ("20 us", "25 ms")
    )
    assert (near["algorithm"], near["protocol"]) == (far["algorithm"], far["protocol"])
    assert far["time_s"] > near["time_s"] + 0.1


def test_engines_agree_and_folding_is_exact():
    node = {"nics": 8, "nic": {"kind": "eth_100", "protocol": "tcp", "stream_bandwidth": "10 Gb/s"}}
    data = {
        "version": 1,
        "cluster": {"preset": "dgx_a100_80gb", "nodes": 2, "node": node, "fabric": {"kind": "fat_tree"}},
        "collective": {"kind": "all_reduce", "size": "64 MB"},
    }
    times = [
        Scenario.model_validate({**data, "simulation": {"engine": engine, "fold": fold}}).run().timeline.makespan
        for engine in ("simpy", "compiled")
        for fold in (True, False)
    ]
    assert times == pytest.approx([times[0]] * 4, rel=1e-9)


@pytest.mark.parametrize(
    ("nic", "network", "told"),
    [
        ({"protocol": "udp"}, {}, "nic.protocol: must be rdma or tcp"),
        ({"stream_bandwidth": "5 Gb/s"}, {}, "nic.stream_bandwidth: belongs to protocol tcp, but protocol is rdma"),
        ({"kind": "ib_hdr", "protocol": "tcp"}, {}, "nic.protocol: tcp over ib_hdr is not modelled"),
        ({"protocol": "tcp", "stream_bandwidth": "5"}, {}, "nic.stream_bandwidth: needs a unit"),
        ({}, {"sockets": 4}, "network.sockets: needs NICs that speak TCP"),
        ({"protocol": "tcp"}, {"sockets": 4, "transport": "gloo"}, "network.sockets: belongs to transport nccl"),
        ({"protocol": "tcp"}, {"sockets": 0}, "network.sockets: must be at least 1"),
    ],
    ids=["unknown", "rdma has no stream", "InfiniBand", "no unit", "sockets without TCP", "Gloo", "none"],
)
def test_wrong_protocols_are_told(nic, network, told):
    with pytest.raises(ScenarioError) as error:
        scenario(nic, **network)
    assert told in str(error.value)
