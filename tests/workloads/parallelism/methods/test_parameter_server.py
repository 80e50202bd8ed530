"""Parameter servers part by part: overlap, staleness and stragglers against closed forms; both engines agree."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.data_parallel.buckets import Weights
from clustersim.workloads.operators.operator import parameter_tensors
from clustersim.workloads.parallelism.methods._push_pull import parts_of

STEP = 12e-3
PUSH = re.compile(r"1\.push\.\d+")
BANDWIDTH = 10e9


def scenario(gpus=4, *, parameters="4M", steps=1, slowdowns=None, simulation=None, latency="0 s", hosts=1, **data):
    stragglers = [{"rank": rank, "slowdown": factor} for rank, factor in (slowdowns or {}).items()]
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {
                "preset": "uniform",
                "gpus": gpus,
                "hosts": hosts,
                "bandwidth": "10 GB/s",
                "latency": latency,
            },
            "model": {"kind": "unit", "num_layers": 4, "forward": "1 ms", "backward": "2 ms", "parameters": parameters},
            "training": {"global_batch_size": gpus, "micro_batch_size": 1, "steps": steps},
            "parallelism": {"data": {"method": "parameter_server", **data}},
            "network": {"transport": "ideal"},
            "simulation": {"stragglers": stragglers, **(simulation or {})},
        }
    )


def step_time(*arguments, **changes):
    return scenario(*arguments, **changes).run().timeline.step_time


def test_without_overlap_and_stragglers_all_consistencies_take_as_long():
    plain = STEP + 2 * 4 * 16e6 / BANDWIDTH  # all GPUs share the port of the server, both ways
    assert step_time() == pytest.approx(plain)
    for staleness in (1, 3, "async"):
        assert step_time(staleness=staleness) == pytest.approx(plain)


@given(st.lists(st.floats(1.0, 3.0), min_size=2, max_size=5), st.integers(0, 2))
@settings(max_examples=15, deadline=None)
def test_stragglers_hold_back_by_consistency(factors, staleness):
    """With next to no bytes: synchronous and stale as the slowest; asynchronous p over the sum of the rates of all."""
    slowdowns = dict(enumerate(factors))
    asynchronous = step_time(len(factors), parameters="4", slowdowns=slowdowns, staleness="async")
    assert asynchronous == pytest.approx(len(factors) / sum(1 / (STEP * factor) for factor in factors), rel=1e-4)
    synchronous = step_time(len(factors), parameters="4", slowdowns=slowdowns, overlap=True)
    assert synchronous == pytest.approx(STEP * max(factors), rel=1e-6)
    # the first steps let fast ones run ahead; a slow one holds them back for the rest
    clear = {rank: 1.0 if factor < max(factors) else 3.0 for rank, factor in slowdowns.items()}
    stale = step_time(len(factors), parameters="4", slowdowns=clear, staleness=staleness + 1)
    assert stale == pytest.approx(3 * STEP, rel=1e-6)


def test_a_straggler_is_ahead_of_nobody_by_more_than_the_staleness():
    timeline = scenario(3, slowdowns={0: 2.0}, staleness=2).run().timeline
    ends = np.array([ends for _, ends in sorted(timeline._batch_ends.items())])
    begins = [timeline.of(rank) for rank in (1, 2)]
    for own in begins:
        names = [op.name for op in timeline.schedule.program(1).ops]
        for step in range(3, timeline.schedule.batches):
            begin = own.begin[own.op == names.index(f"0F{step}.layer 0")][0]
            assert begin >= ends[0, step - 3]


def test_pushes_and_pulls_run_beside_the_computation():
    """A layer's push of 4 x 4 MB takes 1.6 ms at the server, less than its backward pass; so does a pull."""
    assert step_time(overlap=True, parameters="4M") < step_time(parameters="4M")
    # of the first layer both are exposed, since its gradient is last and its weights are first
    assert step_time(overlap=True) == pytest.approx(STEP + 2 * 4 * 4e6 / BANDWIDTH)


def test_pieces_travel_both_ways_at_once():
    """In n pieces the pull of a piece runs beside the push of the next: (n + 1) / (2 n) of the time of both."""
    pieces = step_time(overlap=True, partition="1 MB")
    assert pieces == pytest.approx(STEP + (1 + 1 / 4) * 4 * 4e6 / BANDWIDTH)


def test_priority_lets_the_next_forward_pass_begin_earlier():
    """Two GPUs push 4 layers of 40 MB in 4 pieces: 2 ms a piece, 8 ms a layer, each way; backward 2 ms a layer.

    In order of readiness the first layer goes last: its last piece is pushed after 2 + 32 ms from the begin of the
    backward pass, pulled 2 ms later, and the 4 ms of the forward pass follow. By priority it goes before all but what
    was on its way when it was ready; its pieces are pulled beside those of others, and the forward pass of each layer
    runs beside the exchange of the next: of the forward pass only the last layer's 1 ms is left.
    """
    keys = {"parameters": "40M", "overlap": True, "partition": "10 MB", "steps": 4}
    assert step_time(2, **keys) == pytest.approx(2e-3 + 32e-3 + 2e-3 + 4e-3, rel=1e-6)
    assert step_time(2, priority=True, **keys) == pytest.approx(2e-3 + 32e-3 + 2e-3 + 1e-3, rel=1e-6)


def test_pieces_wait_by_priority_of_their_layer():
    timeline = scenario(2, parameters="40M", overlap=True, partition="10 MB", priority=True).run().timeline
    own, names = timeline.of(0), [op.name for op in timeline.schedule.program(0).ops]
    begins = {names[op]: begin for op, begin in zip(own.op, own.begin, strict=True) if PUSH.fullmatch(names[op])}
    order = [int(name.split(".")[2]) // 4 for name in sorted(begins, key=lambda name: begins[name])]
    # the last layer begins after 2 ms of backward pass; each 2 ms a piece goes, and another layer is ready before it
    assert order == [0, 1, 2, 3, 3, 3, 3, 2, 2, 2, 1, 1, 1, 0, 0, 0]


def test_the_critical_path_passes_through_the_queues():
    result = scenario(2, parameters="40M", overlap=True, partition="10 MB", priority=True, steps=2).run()
    path = result.summary()["critical_path_s"]
    assert sum(path.values()) == pytest.approx(result.timeline.step_time)
    assert path["ps"] > path["compute"]


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_servers_share_the_parts_evenly(servers):
    layers = [Weights(str(layer), parameter_tensors(1000)) for layer in range(4)]
    parts = parts_of(layers, servers, most=250)
    loads = np.bincount([part.server for part in parts], [part.parameters for part in parts])
    assert loads.tolist() == pytest.approx([4000 / servers] * servers)
    assert [part.layer for part in parts] == [str(layer) for layer in (3, 2, 1, 0) for _ in range(4)]


@pytest.mark.parametrize("staleness", [0, 2, "async"])
@pytest.mark.parametrize("overlap", [False, True])
def test_traffic_is_two_models_for_each_gpu_and_step(staleness, overlap):
    result = scenario(3, staleness=staleness, overlap=overlap, hosts=2, servers=2).run()
    assert result.summary()["traffic_bytes"]["ps"] == pytest.approx(3 * 2 * 16e6)


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_both_engines_and_folding_agree(data):
    gpus = data.draw(st.integers(2, 4))
    servers = data.draw(st.integers(1, 2))
    slow = data.draw(st.dictionaries(st.integers(0, gpus - 1), st.floats(1.0, 2.0), max_size=2))
    keys = {
        "staleness": data.draw(st.sampled_from([0, 1, "async"])),
        **data.draw(st.sampled_from([{}, {"overlap": True}, {"overlap": True, "priority": True, "partition": "1 MB"}])),
        "servers": servers,
        "hosts": servers,
        "latency": "7 us",
        "slowdowns": slow,
    }
    jitter = data.draw(st.sampled_from([0.0, 0.1]))
    found = [
        scenario(gpus, simulation={"engine": engine, "fold": fold, "jitter": jitter}, **keys).run().timeline
        for engine, fold in (("simpy", False), ("simpy", True), ("compiled", True))
    ]
    assert [one.step_time for one in found] == pytest.approx([found[0].step_time] * 3, rel=1e-9)
    assert [one.makespan for one in found] == pytest.approx([found[0].makespan] * 3, rel=1e-9)


def test_a_server_holds_the_states_and_gradients_that_arrive():
    result = scenario(3, staleness="async").run()
    # fp32 weights, gradients and Adam's states, and one gradient of each GPU until it is added
    assert result.summary()["memory"]["host_peak_bytes"] == pytest.approx(4e6 * 16 + 3 * 16e6)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"partition": "4 MB"}, "belongs to overlap: true"),
        ({"priority": True}, "belongs to overlap: true"),
        ({"staleness": -1}, "staleness"),
        ({"staleness": "sometimes"}, "staleness"),
    ],
)
def test_bad_keys_are_told(data, told):
    with pytest.raises(ScenarioError, match=told):
        scenario(**data)
