"""A testbed is the cluster's graph as a network: rejected graphs, the built network, and complete removal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import pytest

from clustersim import topologies
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.replay import network_namespaces, testbed
from clustersim.simulator.replay.testbed import shape, switch_tree
from clustersim.topologies.uniform_and_tree import tree, uniform
from tests.simulator.replay.benches import shortest

reason = network_namespaces.unavailable_reason()
real = [pytest.mark.testbed, pytest.mark.skipif(reason is not None, reason=f"no testbed: {reason}")]

LINK = Link("wire", 25e6, 0.0)


def graph(*edges: tuple[str, str]) -> Cluster:
    made: nx.DiGraph[str] = nx.DiGraph()
    for edge in edges:
        for vertex in edge:
            kind = vertex.split()[0]
            made.add_node(vertex, kind=kind, **({"accelerator": Accelerator()} if kind in ("gpu", "host") else {}))
        made.add_edge(*edge, link=LINK)
    return Cluster(made, None, "mine")


def both(*edges: tuple[str, str]) -> Cluster:
    return graph(*edges, *((target, source) for source, target in edges))


@pytest.mark.parametrize(
    ("cluster", "devices", "told"),
    [
        (
            topologies.cluster("zhores"),
            ["gpu 0", "gpu 1"],
            r"zhores is not a tree .* linked to gpu 1, gpu 2, gpu 3, host 0",
        ),
        (uniform(20, 1e6, 0.0), [f"gpu {i}" for i in range(17)], "up to 16 ranks, not 17"),
        (
            graph(("gpu 0", "switch 0"), ("switch 0", "gpu 1")),
            ["gpu 0", "gpu 1"],
            "to switch 0 has no reverse link",
        ),
        (
            both(("gpu 0", "switch 0"), ("switch 0", "host 0"), ("host 0", "switch 1"), ("switch 1", "gpu 1")),
            ["gpu 0", "gpu 1"],
            "host 0 is on routes between others",
        ),
        (both(("gpu 0", "gpu 1")), ["gpu 0", "gpu 1"], "gpu 0 must be linked to one switch, but is linked to gpu 1"),
        (
            both(("gpu 0", "switch 0"), ("gpu 1", "switch 1")),
            ["gpu 0", "gpu 1"],
            "there is no route from gpu 0 to gpu 1",
        ),
        (
            both(
                ("gpu 0", "switch 0"),
                ("switch 0", "switch 1"),
                ("switch 1", "switch 2"),
                ("switch 2", "switch 0"),
                ("switch 1", "gpu 1"),
            ),
            ["gpu 0", "gpu 1"],
            "there is a cycle switch 0 - switch 1 - switch 2",
        ),
    ],
)
def test_a_graph_that_is_not_a_tree_is_rejected_in_one_line(cluster, devices, told):
    with pytest.raises(ClusterError, match=told) as error:
        switch_tree(cluster, devices)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cluster", [tree([2, 2, 2], [1e7] * 3, [0.0] * 3), uniform(8, 1e7, 0.0)])
def test_trees_with_hosts_and_unused_devices_are_accepted(cluster):
    devices = ["gpu 0", "gpu 3", "gpu 7", "host 0"]
    assert {vertex for vertex in switch_tree(cluster, devices) if not vertex.startswith("switch")} == set(devices)


def test_a_bucket_passes_full_frames_at_the_rate_of_the_wire():
    """100 Mb/s of 1,538 B on the wire are 98.44 Mb/s of the 1,514 B that tc counts."""
    assert next(shape("net0", Link("wire", 100e6 / 8, 0.0), delays=False)).split()[:7] == [
        *("qdisc", "add", "dev", "net0", "root"),
        *("tbf", "rate"),
    ]
    assert "rate 98439532bit" in next(shape("net0", Link("wire", 100e6 / 8, 0.0), delays=False))


def test_a_kernel_that_can_delay_frames_gets_the_latency_of_the_link():
    outer, inner = shape("net0", Link("wire", 100e6 / 8, 50e-6), delays=True)
    assert "netem delay 50.000us" in outer
    assert "parent 1:1" in inner
    assert "tbf rate" in inner


def test_a_user_without_root_gets_a_message(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("shutil.which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with (
        pytest.raises(ClusterError, match="no testbed here: it needs root"),
        testbed.build(uniform(2, 1e6, 0.0), ["gpu 0"]),
    ):
        pass


def test_a_machine_without_iproute2_gets_a_message(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("shutil.which", lambda tool: None)
    assert "there is no ip and no tc here; install the package iproute2" in str(network_namespaces.unavailable_reason())


class TestOnRealNetworks:
    pytestmark = real

    def test_every_rank_reaches_exactly_the_other_ranks(self):
        cluster = tree([2, 2], [1e8, 1e8], [0.0, 0.0])
        with testbed.build(cluster, [*cluster.gpus, "host 0", "host 0"]) as built:
            assert len(built.places) == 6
            assert built.places[4].namespace == built.places[5].namespace
            for here in built.places[:5]:
                addresses = [there.address for there in built.places]
                assert inside(here.namespace, CONNECT, *addresses) == "reached " * 6
                assert inside(here.namespace, CONNECT, "192.0.2.1") == "unreachable "

    def test_a_port_has_the_rate_of_its_link(self):
        """2 MB at 200 Mb/s of Ethernet take 85 ms however busy the machine is. The full bucket saves a little."""
        expected = 2e6 * 1538 / 1448 / 25e6
        cluster = tree([2], [25e6], [0.0], hosts=0)
        with testbed.build(cluster, cluster.gpus) as built:
            here, there = built.places
            receiver = started(there.namespace, RECEIVE, there.address)
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "ready\n"

            def sent() -> list[float]:
                return [min(float(inside(here.namespace, SEND, there.address)) for _ in range(5))]

            (seconds,) = shortest(sent, lambda times: times[0] >= 1.05 * expected)
            receiver.kill()
            receiver.communicate()
        assert 0.98 * expected < seconds < 1.05 * expected

    def test_the_cluster_has_latency_only_if_the_kernel_can_delay(self):
        cluster = tree([2], [25e6], [2e-3], hosts=0)
        with testbed.build(cluster, cluster.gpus) as built:
            latency = built.cluster.latency(built.cluster.route("gpu 0", "gpu 1"))

            def round_trips() -> list[float]:
                return [
                    min(float(inside(built.places[0].namespace, ROUND_TRIP, built.places[1].address)) for _ in range(3))
                ]

            # without latency a long round trip is noise; with latency none can be short
            (round_trip,) = shortest(round_trips, lambda times: not latency and times[0] > 8e-3)
        assert latency in (0.0, 4e-3)
        assert (round_trip > 8e-3) == (latency > 0)

    def test_an_error_leaves_nothing(self):
        with pytest.raises(RuntimeError), testbed.build(uniform(2, 1e7, 0.0), ["gpu 0", "gpu 1"]):
            assert len(network_namespaces.listed(network_namespaces.owner())) == 3
            raise RuntimeError
        assert network_namespaces.listed(network_namespaces.owner()) == []

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_leaves_nothing(self, number):
        process = standing()
        mine = network_namespaces.owner(process.pid)
        assert len(network_namespaces.listed(mine)) == 3
        process.send_signal(number)
        process.communicate(timeout=300)
        assert network_namespaces.listed(mine) == []
        assert process.returncode in (-number, 1)

    def test_leftovers_of_a_killed_run_and_their_processes_are_removed(self):
        process = standing()
        mine = network_namespaces.owner(process.pid)
        left = network_namespaces.listed(mine)
        sleeper = subprocess.Popen(["ip", "netns", "exec", left[0], "sleep", "600"])
        until(lambda: str(sleeper.pid) in pids(left[0]))
        process.kill()
        process.communicate()
        with testbed.build(uniform(2, 1e7, 0.0), ["gpu 0", "gpu 1"]):
            assert network_namespaces.listed(mine) == []
            assert sleeper.wait(timeout=300) == -signal.SIGKILL

    def test_runs_at_the_same_time_do_not_touch_each_other(self):
        process = standing()
        with testbed.build(uniform(2, 1e7, 0.0), ["gpu 0", "gpu 1"]), testbed.build(uniform(2, 1e7, 0.0), ["gpu 0"]):
            assert len(network_namespaces.listed(network_namespaces.owner(process.pid))) == 3
        process.terminate()
        process.communicate(timeout=300)


ROOT = Path(__file__).parents[3]

RUN_TESTBED = """
import time
from clustersim.simulator.replay import testbed
from clustersim.topologies.uniform_and_tree import uniform
with testbed.build(uniform(2, 1e7, 0.0), ["gpu 0", "gpu 1"]):
    print("ready", flush=True)
    time.sleep(600)
"""

CONNECT = """
import socket, sys
for address in sys.argv[1:]:
    try:
        socket.create_connection((address, 9), timeout=2)
    except ConnectionRefusedError:
        print("reached", end=" ")
    except OSError:
        print("unreachable", end=" ")
"""

RECEIVE = """
import socket, sys
server = socket.create_server((sys.argv[1], 7777))
print("ready", flush=True)
while True:
    one, _ = server.accept()
    left = 2_000_000
    while left:
        left -= len(one.recv(min(left, 1 << 16)))
    one.sendall(b"x")
"""

SEND = """
import os, socket, sys, time
os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
one = socket.create_connection((sys.argv[1], 7777))
begin = time.monotonic()
one.sendall(bytes(2_000_000))
one.recv(1)
print(time.monotonic() - begin)
"""

ROUND_TRIP = """
import socket, sys, time
begin = time.monotonic()
try:
    socket.create_connection((sys.argv[1], 9))
except ConnectionRefusedError:
    print(time.monotonic() - begin)
"""


def pids(namespace: str) -> list[str]:
    """The processes in *namespace*."""
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True)
    return done.stdout.split()


def until(true: Callable[[], bool]) -> None:
    """Wait until *true*, five minutes at most: a busy machine starts a process late."""
    for _ in range(6000):
        if true():
            return
        time.sleep(0.05)
    raise TimeoutError


def started(namespace: str, script: str, *arguments: str) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def inside(namespace: str, script: str, *arguments: str) -> str:
    """The output of *script* in *namespace*."""
    return started(namespace, script, *arguments).communicate(timeout=300)[0]


def standing() -> subprocess.Popen[str]:
    """A process with a testbed of two ranks."""
    # a process inherits what its parent ignores, and below nohup that is hangups
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN_TESTBED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process
