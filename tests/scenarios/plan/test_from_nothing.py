"""A scenario to plan for, from a model, a cluster and a batch."""

import json
from pathlib import Path

import pytest

from scenarios.plan.from_nothing import scenario_from
from scenarios.plan.space import Rejected, Space
from simulator.errors import ScenarioError


@pytest.mark.parametrize(("batch", "replicas"), [(48, 16), (36, 4), (7, 1)])
def test_a_batch_need_not_be_a_multiple_of_the_gpus(batch: int, replicas: int) -> None:
    scenario = scenario_from("gpt2_xl", "dgx_a100_80gb", 2, batch)
    assert scenario.derived.replicas == replicas
    # the candidates use all GPUs
    space, found = Space(scenario), 0
    for candidate in space.candidates():
        try:
            variant = space.variant(candidate)
        except Rejected:
            continue
        found += 1
        assert variant.derived.ranks == 16
    assert found or batch == 7


def test_settings_change_the_cluster_that_counts() -> None:
    assert scenario_from("gpt2", "dgx_a100_80gb", 2, 48, settings=["cluster.node.accelerators=2"]).derived.replicas == 4


def test_an_unknown_cluster_is_told() -> None:
    with pytest.raises(ScenarioError, match='unknown cluster "dgx"'):
        scenario_from("gpt2", "dgx", 2, 48)


QWEN = {
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "hidden_size": 896,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
}


def test_a_configuration_is_read_by_its_family(tmp_path: Path) -> None:
    path = tmp_path / "qwen" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(QWEN))
    scenario = scenario_from(str(path), "dgx_a100_80gb", 1, 8)
    assert scenario.name == "qwen-1xdgx_a100_80gb"
    assert scenario.model is not None
    # queries, keys and values of Qwen 2 have biases, which its configuration does not say
    assert [tensor.count for tensor in scenario.model.layers[1].tensors][:3] == [896, 896 * 896, 896]
    path.write_text(json.dumps({**QWEN, "model_type": "quen"}))
    with pytest.raises(ScenarioError, match=r'config\.json:1:16: model_type: unknown family "quen"'):
        scenario_from(str(path), "dgx_a100_80gb", 1, 8)
