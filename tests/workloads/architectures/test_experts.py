"""An encoder-decoder with experts: bytes of its exchanges by formula."""

from math import ceil

from clustersim.scenarios import Scenario


def test_bytes_of_the_exchanges_of_switch() -> None:
    """Experts take their whole capacity, 1.25 times an equal share; each of 8 ranks keeps an eighth of its tokens."""
    scenario = {
        "version": 1,
        "cluster": {"preset": "dgx_h100", "nodes": 1},
        "model": {"preset": "switch_base"},
        "training": {"global_batch_size": 64, "micro_batch_size": 4, "precision": "bf16"},
        "parallelism": {"ep": 8},
    }
    copies = sum(128 * ceil(1.25 * 4 * tokens / 128) for tokens in (512, 114))
    ranks, micro_batches, layers, exchanges = 8, 2, 6, 4
    sent = copies * 768 * 2 * 7 / 8 * ranks * micro_batches * layers * exchanges
    assert Scenario.model_validate(scenario).run().summary()["traffic_bytes"]["ep"] == sent
