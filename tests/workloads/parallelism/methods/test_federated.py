"""Federated learning: equal clients in closed form, unequal ones by Monte Carlo, what the server keeps, bad keys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError

STEP, PARAMETERS, BANDWIDTH, LATENCY = 6e-3, 5e6, 10e6, 20e-3


def scenario(gpus, data, *, changes=None):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": gpus, "bandwidth": "10 MB/s", "latency": "20 ms"},
            "model": {"kind": "unit", "num_layers": 2, "forward": "1 ms", "backward": "2 ms", "parameters": "5M"},
            "training": {"global_batch_size": gpus, "micro_batch_size": 1},
            "parallelism": {"data": {"method": "federated", **data}},
            "network": {"transport": "ideal"},
            **(changes or {}),
        }
    )


@settings(max_examples=20, deadline=None)
@given(
    clients=st.integers(1, 6),
    fraction=st.floats(0.05, 1.0),
    steps=st.integers(1, 5),
    rounds=st.integers(1, 3),
    dtype=st.sampled_from([("fp32", 4), ("fp16", 2), ("int8", 1)]),
)
def test_equal_clients_share_the_link_of_the_server_both_ways(clients, fraction, steps, rounds, dtype):
    name, width = dtype
    data = {"clients": clients, "fraction": fraction, "local_steps": steps, "rounds": rounds, "dtype": name}
    result = scenario(clients, data).run()
    sampled = max(1, round(clients * fraction))
    each = 2 * (sampled * width * PARAMETERS / BANDWIDTH + LATENCY) + steps * STEP
    told = result.summary()["federated"]
    assert told["round_s"] == pytest.approx(each)
    assert told["waiting_s"] == pytest.approx(0, abs=1e-6)
    assert told["bytes_of_a_round"] == 2 * sampled * width * PARAMETERS
    assert told["rounds"] == rounds
    # only clients of the sample train
    assert result.summary()["samples_per_s"] == pytest.approx(sampled * steps / each)
    assert result.timeline.step_time == pytest.approx(each / steps)


def test_a_round_is_as_long_as_the_most_data_and_others_wait():
    """Updates of few bytes: each client has sent its own after its steps."""
    changes = {"model": {"kind": "unit", "num_layers": 2, "forward": "1 ms", "backward": "2 ms", "parameters": "1"}}
    told = scenario(3, {"clients": 3, "local_steps": 4, "sizes": [1, 2, 3]}, changes=changes).run().summary()
    assert told["federated"]["round_s"] == pytest.approx(2 * LATENCY + 6 * STEP, rel=1e-4)
    assert told["federated"]["waiting_s"] == pytest.approx((4 + 2 + 0) / 3 * STEP, rel=1e-4)
    assert told["samples_per_s"] == pytest.approx(12 / (2 * LATENCY + 6 * STEP), rel=1e-4)


@pytest.mark.exhaustive
def test_unequal_clients_by_monte_carlo():
    """The mean round is the expected maximum over a sample without replacement; drawn anew with numpy."""
    sizes, sampled, rounds = [1, 1, 1, 1, 2, 2, 4, 8], 2, 300
    changes = {"model": {"kind": "unit", "num_layers": 2, "forward": "1 ms", "backward": "2 ms", "parameters": "1"}}
    data = {"clients": 8, "fraction": sampled / 8, "local_steps": 5, "sizes": sizes, "rounds": rounds}
    told = scenario(8, data, changes=changes).run().summary()["federated"]
    rng = np.random.default_rng(7)
    draws = [rng.choice(sizes, sampled, replace=False) for _ in range(20_000)]
    steps = [np.maximum(1, np.round(5 * own / np.mean(sizes))) for own in np.array(draws)]
    longest = np.max(steps, axis=1)
    error = 4 * longest.std() / rounds**0.5 * STEP
    assert told["round_s"] == pytest.approx(2 * LATENCY + longest.mean() * STEP, abs=error)
    assert told["waiting_s"] == pytest.approx((longest - np.mean(steps, axis=1)).mean() * STEP, abs=error)
    assert told["round_percentiles_s"]["p5"] < told["round_s"] < told["round_percentiles_s"]["p95"]


def test_a_gpu_for_each_client_of_a_round_is_enough():
    data = {"clients": 100, "fraction": 0.04, "local_steps": 3, "rounds": 2}
    assert scenario(4, data).run().summary()["federated"]["clients_of_a_round"] == 4


def test_a_slow_client_has_the_link_of_the_server_for_itself_and_others_wait():
    slow = {"simulation": {"stragglers": [{"rank": 2, "slowdown": 300}]}}
    told = scenario(4, {"clients": 4, "local_steps": 10}, changes=slow).run().summary()["federated"]
    one = 4 * PARAMETERS / BANDWIDTH
    trained = 10 * 300 * STEP
    assert told["round_s"] == pytest.approx(4 * one + trained + one + 2 * LATENCY, rel=1e-3)
    # the other three share the link beside its steps
    assert told["waiting_s"] == pytest.approx(3 / 4 * (trained + one - 3 * one), rel=0.01)


REAL = {
    "cluster": {"preset": "zhores", "nodes": 1},
    "model": {"preset": "resnet50"},
    "training": {"global_batch_size": 64, "micro_batch_size": 16, "precision": "fp32", "optimizer": "momentum"},
    "network": {},
}


def test_joined_steps_take_as_long_as_those_layer_by_layer():
    def seconds(steps):
        told = scenario(4, {"clients": 4, "local_steps": steps}, changes=REAL).run().summary()
        return told["federated"]["round_s"]

    one, two, five = map(seconds, (1, 2, 5))
    single = scenario(4, {"clients": 4, "local_steps": 1}, changes=REAL).run().breakdown
    assert (five - two) / 3 == pytest.approx(two - one, rel=1e-6)
    assert two - one == pytest.approx(single["compute"] + single["optimizer"] + single.get("host", 0.0), rel=0.03)


@pytest.mark.parametrize(("server", "states"), [("fedavg", 0), ("fedavgm", 1), ("fedadam", 2)])
def test_the_server_keeps_weights_the_sum_states_and_updates_that_arrive(server, states):
    result = scenario(4, {"clients": 4, "local_steps": 2, "server": server}, changes=REAL).run()
    parameters = 25_557_032
    assert result.summary()["memory"]["host_peak_bytes"] >= 4 * parameters * (2 + states)
    kernels = {op.name: op.kernels for op in result.timeline.schedule.program(4).ops if hasattr(op, "kernels")}
    passes = 2 if server == "fedavg" else 3 + 2 * states
    assert kernels["0.update"][0].nbytes == 4 * passes * parameters


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"local_steps": 2}, "clients"),
        ({"clients": 9, "fraction": 0.5, "local_steps": 2}, "9 clients, 4 of them in a round, need dp = 9 or 4, not 3"),
        ({"clients": 3, "local_steps": 2, "sizes": [1, 2]}, "lists 2 clients, but clients is 3"),
        ({"clients": 3, "local_steps": 2, "sizes": 7}, "must be a list of the clients' numbers of samples"),
        ({"clients": 3, "local_steps": 2, "sizes": {"variatoin": 1}}, "variation"),
        ({"clients": 3, "local_steps": 2, "fraction": 0}, "fraction"),
        ({"clients": 3, "local_steps": 1000, "rounds": 1000}, "more than 100,000 steps"),
        ({"clients": 3, "local_steps": 2, "server": "adam"}, "fedadam"),
    ],
)
def test_bad_keys_are_told(data, told):
    with pytest.raises(ScenarioError, match=told):
        scenario(3, data).schedule()
