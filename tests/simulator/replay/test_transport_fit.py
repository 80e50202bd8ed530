"""A calibration recovers the transport that produced the measurements, and predicts other communications."""

from dataclasses import replace

import numpy as np
import pytest

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.gloo import gloo
from clustersim.simulator.network.transport import NET, NVLINK, PCI
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.replay import transport_fit
from clustersim.simulator.replay.measurements import SEND, Measurement, sizes
from clustersim.simulator.replay.transport_fit import calibrate, seconds
from clustersim.topologies.uniform_and_tree import tree, uniform

SWEEP = sizes(8, 32 << 20, factor=8)
HOPS = (NVLINK, PCI, NET)


def measured(cluster, transport, kinds, noise=0.0, disturbed=0.0, swept=SWEEP, seed=0):
    """The measurements of ranks on all GPUs of *cluster*; some are *disturbed* by a factor of five."""
    random = np.random.default_rng(seed)
    communicator = Communicator(cluster, cluster.gpus, transport)
    everyone = tuple(range(len(cluster.gpus)))
    rows = []
    for kind in kinds:
        for size in swept:
            plan = communicator.send(0, 1, size) if kind == SEND else communicator.collective(kind, "x", everyone, size)
            time = seconds(plan, cluster) * np.exp(noise * random.standard_normal())
            time *= 5.0 if random.random() < disturbed else 1.0
            rows.append(Measurement(kind, (0, 1) if kind == SEND else everyone, size, float(time)))
    return rows


def machine(hop=85e-6, **changes):
    return replace(gloo(), hop_latency={(one, "ring", "tcp"): hop for one in HOPS}, **changes)


def values(found):
    return {key: value for one in found.parameters for key, value in one.parameter.entries}


def bare(cluster: Cluster) -> Cluster:
    """The same without latencies, like an unknown cluster in a calibration."""
    return cluster.map_links(lambda link: replace(link, latency=0.0))


def test_latency_and_bandwidth_are_found_in_spite_of_noise_and_disturbance():
    cluster = uniform(4, 1e9, 0.0)
    kinds = SEND, "all_reduce", "all_gather"
    rows = measured(cluster, machine(), kinds, noise=0.03, disturbed=0.1, swept=SWEEP[::2])
    found = values(calibrate(rows, uniform(4, 3e9, 0.0), cluster.gpus, gloo()))
    assert found["hop_latency", (NVLINK, "ring", "tcp")] == pytest.approx(85e-6, rel=0.05)
    # the assumed cluster has three times the bandwidth of the real one; the efficiency compensates for it
    assert found["efficiency", NET] == pytest.approx(gloo().efficiency[NET] / 3, rel=0.05)


def test_hops_that_a_library_does_not_distinguish_share_a_parameter():
    cluster = uniform(2, 1e9, 0.0)
    found = calibrate(measured(cluster, machine(), (SEND,)), cluster, cluster.gpus, gloo()).transport
    assert {found.hop_latency[hop, "ring", "tcp"] for hop in HOPS} == {found.hop_latency[NET, "ring", "tcp"]}


def test_point_to_point_alone_predicts_what_was_not_measured():
    """A calibration on messages of one pair predicts a ring, a binomial broadcast and groups over a thin uplink."""
    cluster = tree([2, 2], [20e6, 50e6], [30e-6, 30e-6])
    truth = machine(efficiency={NET: 0.9})
    rows = [*measured(cluster, truth, (SEND,))]
    found = calibrate(rows, cluster, cluster.gpus, gloo()).transport
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        expected = [row.seconds for row in measured(cluster, truth, (kind,))]
        assert [row.seconds for row in measured(cluster, found, (kind,))] == pytest.approx(expected, rel=0.02)


@pytest.mark.exhaustive
def test_no_parameter_is_added_without_need():
    """At most one of five data sets seems by chance to need more parameters."""
    cluster, plain = uniform(4, 1e9, 0.0), 0
    for seed in range(5):
        rows = measured(cluster, machine(), (SEND, "all_reduce"), noise=0.05, swept=SWEEP[::2], seed=seed)
        found = calibrate(rows, cluster, cluster.gpus, gloo())
        plain += [one.parameter.name[0] for one in found.parameters] == ["hop_latency", "efficiency"]
    assert plain >= 4


@pytest.mark.exhaustive
def test_an_algorithm_with_own_latency_and_rate_gets_own_parameters():
    truth = machine(base_latency={("ring", "tcp"): 900e-6}, ceilings={("ring", "tcp", "any"): 0.2e9})
    cluster = uniform(4, 1e9, 0.0)
    rows = measured(cluster, truth, (SEND, "all_reduce", "broadcast"), noise=0.02, swept=sizes(8, 32 << 20, factor=32))
    found = values(calibrate(rows, cluster, cluster.gpus, gloo()))
    assert found["base_latency", ("ring", "tcp")] == pytest.approx(900e-6, rel=0.1)
    assert found["ceilings", ("ring", "tcp", "any")] == pytest.approx(0.2e9, rel=0.05)


def test_a_crossover_between_protocols_is_found_where_it_is():
    """Short vectors start at once at 100 MB/s, long ones after 2 ms at 1 GB/s. The times are equal at about 210 kB."""
    hops = {(hop, "ring", protocol): s for hop in HOPS for protocol, s in (("eager", 80e-6), ("bulk", 2e-3))}
    ceilings = {("any", "eager", "any"): 1e8, ("any", "bulk", "any"): 1e9}
    truth = replace(gloo(), protocols=("eager", "bulk"), hop_latency=hops, ceilings=ceilings)
    cluster = uniform(2, 10e9, 0.0)
    rows = measured(
        cluster, truth, (SEND,), noise=0.02, swept=[*sizes(8, 2**14, factor=4), *sizes(2**15, 32 << 20, factor=2)]
    )
    found = calibrate(rows, cluster, cluster.gpus, gloo())
    ((kind, nbytes, before, after),) = found.crossovers()
    assert (kind, before.protocol, after.protocol) == (SEND, "tcp", "long")
    assert nbytes == 2**18
    assert found.fit.typical_error < 0.05


def test_undetermined_parameters_keep_the_librarys_values():
    """Small messages alone do not determine the bandwidth."""
    cluster = uniform(2, 1e9, 0.0)
    rows = measured(cluster, machine(), (SEND,), noise=0.03, swept=(8, 16, 32, 64))
    found = calibrate(rows, cluster, cluster.gpus, gloo())
    assert found.transport.efficiency == gloo().efficiency
    assert [one.parameter.name[0] for one in found.parameters] == ["hop_latency"]


def test_beside_exact_residuals_no_parameter_is_tried(monkeypatch):
    cluster = uniform(2, 1e9, 0.0)
    monkeypatch.setattr(transport_fit, "extensions", lambda *arguments: pytest.fail("tried"))
    found = calibrate(measured(cluster, machine(), (SEND,)), cluster, cluster.gpus, gloo())
    assert found.fit.exact
    assert [one.parameter.name[0] for one in found.parameters] == ["hop_latency", "efficiency"]


def test_as_many_parameters_as_rows_are_not_tried():
    """They would follow any rows, and the criterion would take that for a gain."""
    cluster = uniform(2, 1e9, 0.0)
    rows = measured(cluster, machine(), (SEND,), noise=0.5, swept=(8, 1 << 16, 32 << 20))
    found = calibrate(rows, cluster, cluster.gpus, gloo())
    assert not found.fit.exact
    assert len(found.fit.parameters) == 2


def test_nothing_measured():
    cluster = uniform(2, 1e9, 0.0)
    with pytest.raises(CalibrationError, match="no measurements"):
        calibrate([], cluster, cluster.gpus, gloo())
