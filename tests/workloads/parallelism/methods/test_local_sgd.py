"""Local SGD: a period has its steps and one average; under jitter replicas wait for the maximum of the sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError

FORWARD, BACKWARD = 1e-3, 2e-3
PARAMETERS, BANDWIDTH, LATENCY = 40e6, 10e9, 5e-6


def scenario(gpus=4, data=None, *, steps=1, changes=None, **parallelism):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": gpus, "bandwidth": "10 GB/s", "latency": "5 us"},
            "model": {"kind": "unit", "num_layers": 2, "forward": "1 ms", "backward": "2 ms", "parameters": "40M"},
            "training": {"global_batch_size": gpus, "micro_batch_size": 1, "steps": steps, "samples": 1000 * gpus},
            "parallelism": {"data": data or {"method": "local_sgd", "every": 8}, **parallelism},
            "network": {"transport": "ideal", "algorithms": {"all_reduce": "ring"}},
            **(changes or {}),
        }
    )


def ring(gpus, nbytes):
    """A ring all-reduce: 2 (p - 1) messages of 1/p of the bytes, one after the other."""
    return 2 * (gpus - 1) * (nbytes / gpus / BANDWIDTH + LATENCY)


@settings(max_examples=20, deadline=None)
@given(
    gpus=st.integers(2, 6),
    every=st.integers(1, 9),
    steps=st.integers(1, 12),
    dtype=st.sampled_from([("fp32", 4), ("bf16", 2)]),
)
def test_a_period_is_its_steps_and_one_average(gpus, every, steps, dtype):
    name, width = dtype
    result = scenario(gpus, {"method": "local_sgd", "every": every, "dtype": name}, steps=steps).run()
    average = ring(gpus, width * PARAMETERS)
    assert result.timeline.step_time == pytest.approx(2 * (FORWARD + BACKWARD) + average / every)
    assert result.timeline.steps_measured == -(-steps // every) * every
    # 2 (p - 1) / p of the weights from each rank, once a period
    assert result.summary()["traffic_bytes"]["dp"] == pytest.approx(2 * (gpus - 1) * width * PARAMETERS / every)
    assert "whole periods of local_sgd" in result.report()


def test_one_step_a_period_costs_as_much_as_gradients_without_overlap():
    local = scenario(data={"method": "local_sgd", "every": 1}).run()
    synchronous = scenario(data={"method": "ddp", "overlap": False}).run()
    assert local.timeline.step_time == pytest.approx(synchronous.timeline.step_time)


def test_post_local_sgd_tells_both_kinds_of_steps_and_trains_through_both():
    result = scenario(data={"method": "local_sgd", "every": 8, "start": 100}).run()
    local = scenario().run().timeline.step_time
    synchronous = scenario(data={"method": "ddp"}).run().timeline.step_time
    told = result.summary()
    assert told["step_time_s"] == pytest.approx(local)
    assert told["first_steps"] == {"count": 100, "step_time_s": pytest.approx(synchronous)}
    assert told["training"]["days"] * 86400 == pytest.approx(100 * synchronous + 900 * local)
    assert "each of the first 100 steps is synchronous" in result.report()


def test_a_subgroup_reduces_gradients_in_every_step():
    result = scenario(4, {"method": "local_sgd", "every": 4, "subgroup": 2}).run()
    # within pairs in each step (of 4 ranks, 2 (2 - 1) / 2 of the bytes each), then all four once
    expected = 4 * 4 * PARAMETERS + 6 * 4 * PARAMETERS / 4
    assert result.summary()["traffic_bytes"]["dp"] == pytest.approx(expected)


def test_replicas_wait_for_the_maximum_of_the_sums_of_their_steps():
    """With jitter c of each op: E max over p of a sum of n ops of 1/(2n) of the period; Monte Carlo with numpy."""
    gpus, every, jitter, layers = 8, 8, 0.3, 2
    changes = {"simulation": {"jitter": jitter, "repeats": 60}, "model": MODEL}
    local = scenario(gpus, {"method": "local_sgd", "every": every}, changes=changes).run()
    synchronous = scenario(gpus, {"method": "local_sgd", "every": 1}, changes=changes, steps=every).run()
    rng = np.random.default_rng(1)
    seconds = np.repeat([FORWARD, BACKWARD], layers)
    sigma = np.sqrt(np.log1p(jitter**2))
    draws = seconds * rng.lognormal(-(sigma**2) / 2, sigma, (20_000, gpus, every, 2 * layers))
    steps = draws.sum(axis=-1)
    of_sums, sum_of = steps.sum(axis=-1).max(axis=-1).mean() / every, steps.max(axis=1).sum(axis=-1).mean() / every
    assert np.mean(local.step_times) == pytest.approx(of_sums, rel=0.01)
    assert np.mean(synchronous.step_times) == pytest.approx(sum_of, rel=0.01)
    assert of_sums < sum_of


MODEL = {"kind": "unit", "num_layers": 2, "forward": "1 ms", "backward": "2 ms"}


@pytest.mark.parametrize("pp", [2, 4])
def test_a_pipeline_drains_in_each_step(pp):
    model = {"kind": "unit", "num_layers": 4, "forward": "1 ms", "backward": "2 ms"}
    training = {"global_batch_size": 16, "micro_batch_size": 1}
    result = scenario(8, {"method": "local_sgd", "every": 3}, changes={"model": model, "training": training}, pp=pp)
    plain = scenario(8, {"method": "ddp"}, changes={"model": model, "training": training}, pp=pp)
    assert result.run().timeline.step_time == pytest.approx(plain.run().timeline.step_time, rel=0.01)


def test_tied_embeddings_and_the_norm_are_summed_in_each_step():
    changes = {
        "cluster": {"preset": "dgx_a100_40gb", "nodes": 1},
        "model": {"preset": "gpt2"},
        "training": {"global_batch_size": 16, "micro_batch_size": 1, "precision": "bf16"},
        "network": {},
    }
    program = scenario(data={"method": "local_sgd", "every": 2}, changes=changes, pp=4).schedule().programs[-1]
    names = [op.name for op in program.ops if "embedding" in op.name or "norm" in op.name or op.name.startswith("3O")]
    step = ["3O{}.embedding gradients", "3O{}.norm", "3O{}"]
    found = [name for name in names if not name.endswith("host")]
    assert found == [name.format(last) for last in (7, 15) for name in step]
    waits = {op.name: op.after for op in program.ops}
    # the sum of this step, not of the one before as in a pipeline that never drains
    assert "3O15.embedding gradients" in waits["3O15"]


@pytest.mark.parametrize(
    ("data", "others", "told"),
    [
        ({"method": "local_sgd"}, {}, "every"),
        ({"method": "local_sgd", "every": 2, "subgroup": 3}, {}, "subgroup = 3 does not divide dp = 4; try 2 or 4"),
        ({"method": "local_sgd", "every": 2}, {"pp": 2, "schedule": "pipedream"}, "is asynchronous, and local_sgd"),
    ],
)
def test_bad_keys_are_told(data, others, told):
    with pytest.raises(ScenarioError, match=told):
        scenario(4, data, **others).schedule()
