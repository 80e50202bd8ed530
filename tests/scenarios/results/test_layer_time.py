"""The time of one layer, against durations that are given and the step that they make."""

import pytest

from clustersim.scenarios import Scenario


def layer(**changes: object) -> dict[str, float]:
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": 2, "hosts": 1, "bandwidth": "1 GB/s", "latency": "0 s"},
            "model": {"kind": "unit", "num_layers": 4, "forward": "1 s", "backward": "2 s", "parameters": 500e6},
            "training": {"global_batch_size": 12, "micro_batch_size": 2, **changes},
            "parallelism": {"pp": 2},
            "network": {"transport": "ideal"},
        }
    )
    seconds: dict[str, float] = scenario.run().summary()["layer_s"]
    return seconds


def test_given_durations_are_the_layers_time_whatever_waits() -> None:
    # the pipeline waits at both ends, which is no layer's time
    assert layer() == pytest.approx({"forward": 1, "backward": 2, "both": 3})


def test_recomputation_counts_as_backward() -> None:
    assert layer(recompute="full") == pytest.approx({"forward": 1, "backward": 3, "both": 4})


def test_one_layer_stands_for_its_like_and_embedding_and_head_do_not() -> None:
    def of(layers: int) -> float:
        model = {"preset": "gpt2", "num_layers": layers}
        data = {
            "version": 1,
            "cluster": {"preset": "dgx_a100_80gb"},
            "model": model,
            "training": {"global_batch_size": 8, "precision": "bf16"},
            "parallelism": {"tp": 2, "dp": 1},
        }
        return float(Scenario.model_validate(data).run().summary()["layer_s"]["both"])

    assert of(1) == pytest.approx(of(5))
