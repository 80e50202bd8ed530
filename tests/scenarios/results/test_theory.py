"""The bubble of a pipeline beside its closed form: equal in unit time, and stated in the report."""

import re
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.results.efficiency import bubble


def unit(stages: int, micro_batches: int, backward: str = "2 s", **pipeline: Any) -> Scenario:
    """A model of equal layers on a network with negligible cost."""
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {
                "preset": "uniform",
                "gpus": stages,
                "hosts": 1,
                "accelerator": "unit",
                "bandwidth": "100 GB/s",
                "latency": "0 s",
            },
            "model": {"kind": "unit", "num_layers": 6 * stages, "forward": "1 s", "backward": backward},
            "training": {"global_batch_size": micro_batches, "micro_batch_size": 1},
            "parallelism": {"pp": stages, **pipeline},
            "network": {"transport": "ideal"},
        }
    )


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 4), (4, 12), (5, 10)])
@pytest.mark.parametrize(
    ("schedule", "virtual"),
    [
        *(("naive", None), ("gpipe", None), ("1f1b", None), ("zero_bubble_h1", None)),
        *(("interleaved", 3), ("interleaved", None), ("looped_bfs", 2)),
    ],
)
def test_the_simulated_bubble_is_the_closed_form(
    schedule: str, virtual: int | None, stages: int, micro_batches: int
) -> None:
    own: dict[str, Any] = {} if virtual is None else {"virtual_stages": virtual}
    scenario = unit(stages, micro_batches, schedule=schedule, **own)
    expected = bubble(scenario)
    assert expected is not None
    assert scenario.run().summary()["bubble_fraction"] == pytest.approx(expected.fraction, rel=1e-9)


def test_it_does_not_ask_how_long_a_backward_pass_is() -> None:
    scenario = unit(4, 8, backward="5 s")
    assert scenario.run().summary()["bubble_fraction"] == pytest.approx(3 / 11, rel=1e-9)


def test_there_is_none_without_a_pipeline_or_a_formula() -> None:
    assert bubble(unit(1, 4)) is None
    assert bubble(unit(4, 4, schedule="varuna")) is None
    assert bubble(unit(4, 6, schedule="interleaved", virtual_stages=2)) is None


def test_the_report_states_both() -> None:
    report = unit(4, 8).run().report()
    assert "bubble 27.3%; in theory 27.3% = (p - 1)/(m + p - 1)" in report
    assert "in theory" not in Scenario.load("hello").run().report()
    table = Scenario.load("gpipe_vs_varuna").run().report()
    assert re.search(r"bubble +32.1% +30.6% +37.5%\n  in theory, without recomputation +37.5% +37.5%\n", table)
