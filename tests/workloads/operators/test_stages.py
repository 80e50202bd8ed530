"""Layouts: which layers make up each stage."""

from dataclasses import replace

import pytest

from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.architectures.transformer import Transformer, next_tokens
from clustersim.workloads.operators.stages import stages_of


def sizes(stages):
    return [len(stage) for stage in stages]


def test_equal_stages_with_the_ends_where_they_belong():
    stages = stages_of(model("gpt2", "fp32"), 4)
    assert sizes(stages) == [4, 3, 3, 4]
    assert stages[0][0].kind == "embedding"
    assert stages[-1][-1].kind == "head"


def test_divisibility_is_asked_only_without_a_layout():
    gpt2 = model("gpt2", "fp32")
    with pytest.raises(ScenarioError, match=r"5 stages do not divide the 12 layers of gpt2.*; try 4 or 6 stages, or a"):
        stages_of(gpt2, 5)
    assert sizes(stages_of(gpt2, 5, "balanced")) == [4, 3, 2, 2, 3]
    assert sizes(stages_of(gpt2, 5, [4, 2, 2, 2, 2])) == [5, 2, 2, 2, 3]


def test_embedding_and_head_as_a_layer_each():
    # Qi et al. 2023, arXiv:2401.10241: 22 layers on 8 stages, 3 for each but 2 on the first and the last
    twenty_two = unit_model(22, 1.0, 2.0)
    ends = model("gpt2", "fp32").layers
    whole = type(twenty_two)("ends", [ends[0], *twenty_two.layers, ends[-1]], 1.0)
    assert sizes(stages_of(whole, 8, "embedding_as_layer")) == [3] * 8


def test_a_module_of_multi_token_prediction_counts_as_two_layers():
    # 61 layers, embedding, head, and a layer with logits on 16 stages: 65 in all
    plain = model("deepseek_v3", "bf16")
    assert isinstance(plain, Transformer)
    whole = next_tokens(replace(plain.shape, num_nextn_predict_layers=1))
    made = stages_of(whole, 16, "embedding_as_layer")
    assert sizes(made) == [1 + 4, *[4] * 14, 1 + 2]
    assert [layer.name for layer in made[-1]] == ["layer 60", "head", "mtp 0"]


@pytest.mark.parametrize(
    ("layout", "message"),
    [([6, 5], "layout has 2 stages with 11 layers in all"), ([12], "layout has 1 stages with 12 layers in all")],
)
def test_a_layout_that_does_not_add_up_is_told(layout, message):
    with pytest.raises(ScenarioError, match=message):
        stages_of(model("gpt2", "fp32"), 2, layout)


def test_a_stage_without_a_layer_is_told():
    with pytest.raises(ScenarioError, match="stage 3 of 5 has no layer"):
        stages_of(unit_model(3, 1.0, 2.0), 5, "balanced")
