"""Latency between stages, exactly: messages follow each other on a link without waiting for each other's arrival."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario

counts = st.integers(2, 5)
latencies = st.sampled_from([0.125, 1.0, 3.5])


def step_time(schedule: str, p: int, m: int, latency: float, forward: float, backward: float) -> float:
    """Seconds of a step of unit slots whose messages take *latency* s and no bandwidth to speak of."""
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {
                "preset": "uniform",
                "gpus": p,
                "hosts": 1,
                "accelerator": "unit",
                "bandwidth": "100 GB/s",
                "latency": f"{latency} s",
            },
            "model": {
                "kind": "unit",
                "num_layers": p,
                "forward": f"{forward} s",
                "backward": f"{backward} s",
                "activations": "1 B",
            },
            "training": {"global_batch_size": m, "micro_batch_size": 1},
            "parallelism": {"pp": p, "schedule": schedule, "optimizer_sync": False},
            "network": {"transport": "ideal"},
        }
    )
    return scenario.run().timeline.step_time


@settings(deadline=None, max_examples=20)
@given(counts, st.integers(1, 8), latencies, st.sampled_from([1.0, 0.25]), st.sampled_from([1.0, 2.0]))
def test_gpipe_pays_latency_once_each_way(p: int, m: int, latency: float, forward: float, backward: float) -> None:
    expected = (m + p - 1) * (forward + backward) + 2 * (p - 1) * latency
    assert step_time("gpipe", p, m, latency, forward, backward) == pytest.approx(expected, rel=1e-9)


@settings(deadline=None, max_examples=10)
@given(counts, latencies)
def test_1f1b_waits_for_a_round_trip_through_all_stages_every_p_micro_batches(p: int, latency: float) -> None:
    """Stage 0 has p micro-batches under way, so p of them take p (F + B) and 2 (p - 1) latencies."""
    times = [step_time("1f1b", p, rounds * p, latency, 1.0, 2.0) for rounds in (4, 5)]
    assert (times[1] - times[0]) / p == pytest.approx(1.0 + 2.0 + 2 * (p - 1) * latency / p, rel=1e-9)
