"""DiLoCo: an outer step after each period; with fragments and a delay its exchange runs beside inner steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError

STEP = 6e-3
PARAMETERS, BANDWIDTH = 40e6, 10e9


def scenario(gpus=4, *, steps=1, changes=None, **data):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": gpus, "bandwidth": "10 GB/s", "latency": "0 s"},
            "model": {"kind": "unit", "num_layers": 4, "forward": "0.5 ms", "backward": "1 ms", "parameters": "40M"},
            "training": {"global_batch_size": gpus, "micro_batch_size": 1, "steps": steps},
            "parallelism": {"data": {"method": "diloco", **data}},
            "network": {"transport": "ideal", "algorithms": {"all_reduce": "ring"}},
            **(changes or {}),
        }
    )


def all_reduce(gpus, parameters, width=4.0):
    return 2 * (gpus - 1) / gpus * width * parameters / BANDWIDTH


@pytest.mark.parametrize(("dtype", "width"), [("fp32", 4), ("bf16", 2), ("fp8", 1), ("fp4", 0.5)])
@pytest.mark.parametrize("fragments", [1, 2, 4])
def test_without_delay_everything_waits_for_the_exchange(dtype, width, fragments):
    result = scenario(every=20, dtype=dtype, fragments=fragments).run()
    assert result.timeline.step_time == pytest.approx(STEP + all_reduce(4, PARAMETERS, width) / 20)
    assert result.summary()["traffic_bytes"]["dp"] == pytest.approx(2 * 3 * width * PARAMETERS / 20)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_delay_hides_an_exchange_behind_so_many_steps(data):
    every = data.draw(st.integers(2, 12))
    fragments = data.draw(st.sampled_from([n for n in (1, 2, 4) if every % n == 0]))
    delay = data.draw(st.integers(1, every // fragments))
    periods = data.draw(st.integers(1, 2))
    if delay == every:
        return
    result = scenario(every=every, fragments=fragments, delay=delay, steps=periods * every).run()
    # one exchange at a time: a fragment's begins after its step, and the result is awaited `delay` steps later
    exposed = max(0.0, all_reduce(4, PARAMETERS / fragments) - delay * STEP)
    assert result.timeline.step_time == pytest.approx(STEP + fragments * exposed / every)
    assert result.timeline.steps_measured == periods * every
    assert result.summary()["traffic_bytes"]["dp"] == pytest.approx(2 * 3 * 4 * PARAMETERS / every)


def test_streaming_lowers_the_peak_of_bandwidth_not_the_bytes():
    plain, streaming = scenario(every=8).run(), scenario(every=8, fragments=4, delay=1).run()
    assert streaming.summary()["traffic_bytes"] == pytest.approx(plain.summary()["traffic_bytes"])
    assert streaming.timeline.step_time < plain.timeline.step_time


@pytest.mark.parametrize(("outer", "states"), [("sgd", 0), ("momentum", 1), ("nesterov", 1), ("adam", 2)])
def test_every_rank_keeps_the_old_weights_and_the_outer_states(outer, states):
    changes = {"model": {"preset": "gpt2"}, "cluster": {"preset": "dgx_a100_40gb", "nodes": 1}}
    changes["training"] = {"global_batch_size": 8, "micro_batch_size": 1, "precision": "bf16"}
    local = scenario(8, every=2, changes=changes, method="local_sgd").run()
    result = scenario(8, every=2, changes=changes, outer=outer).run()
    more = [run.summary()["memory"]["by_category_bytes"]["optimizer"] for run in (local, result)]
    assert more[1] - more[0] == pytest.approx(4 * (1 + states) * 124439808)


def test_the_outer_step_costs_its_passes_over_memory():
    """Difference (3 fp32 passes) and Nesterov (gradient, momentum, old weights, new ones: 6, and the 16-bit copy)."""
    changes = {"model": {"preset": "gpt2"}, "cluster": {"preset": "dgx_a100_40gb", "nodes": 1}}
    changes["training"] = {"global_batch_size": 8, "micro_batch_size": 1, "precision": "bf16"}
    program = scenario(8, every=2, changes=changes).schedule().programs[0]
    nbytes = {op.name: sum(k.nbytes for k in op.kernels) for op in program.ops if op.name.startswith("outer 1.0.")}
    assert nbytes == {
        "outer 1.0.gradient": pytest.approx(12 * 124439808),
        "outer 1.0.update": pytest.approx(26 * 124439808),
    }


@pytest.mark.parametrize("pattern", ["strided", "sequential"])
def test_fragments_are_all_of_the_weights(pattern):
    program = scenario(every=4, fragments=3, pattern=pattern).schedule().programs[0]
    sent = [op.nbytes for op in program.ops if op.name.startswith("outer") and hasattr(op, "nbytes")]
    assert len(sent) == 3
    assert sum(sent) == pytest.approx(4 * PARAMETERS)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"every": 4, "fragments": 5}, "data.fragments: must be at most 4, the steps of a period"),
        ({"every": 4, "delay": 4}, "data.delay: must be below 4, the steps of a period"),
        ({"every": 4, "outer": "lion"}, "outer"),
    ],
)
def test_bad_keys_are_told(data, told):
    with pytest.raises(ScenarioError, match=told):
        scenario(**data)
