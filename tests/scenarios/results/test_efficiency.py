"""Rules of batch size: steps and data to a loss, and advice with sources."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.results.efficiency import data_factor, rules, steps_factor

GPT = {"training.tokens": 300e9, "training.critical_batch_size": 4e6}


@given(st.floats(1, 1e9), st.floats(1, 1e9))
def test_steps_and_data_lie_on_the_hyperbola(batch, critical):
    """(S / S_min - 1) (E / E_min - 1) = 1 (McCandlish et al. 2018, section 2)."""
    assert (steps_factor(batch, critical) - 1) * (data_factor(batch, critical) - 1) == pytest.approx(1)


def test_a_bigger_batch_is_not_free():
    """Twice the batch at the same tokens takes fewer days a token, but more tokens to the same loss."""
    found = {}
    for batch in (512, 2048):
        changed = {**GPT, "training.global_batch_size": batch}
        found[batch] = Scenario.load("gpt_6_7b_64a100", changed).run().summary()["training"]
    assert found[2048]["days"] < found[512]["days"]
    for batch, one in found.items():
        assert one["days_to_loss"] == pytest.approx(one["days"] * (1 + batch * 2048 / 4e6))
    assert found[2048]["days_to_loss"] > found[512]["days_to_loss"]


def test_without_a_critical_batch_size_nothing_is_added():
    found = Scenario.load("gpt_6_7b_64a100", {"training.tokens": 300e9}).run().summary()["training"]
    assert "days_to_loss" not in found


@pytest.mark.parametrize(
    ("batch", "optimizer", "told"),
    [
        (256, "momentum", ["Goyal"]),
        (32_000, "momentum", ["Goyal", "LARS"]),
        (1536, "adam", ["sqrt(k)"]),
        (32_000, "adam", ["sqrt(k)", "LAMB"]),
    ],
)
def test_rules_name_their_sources(batch, optimizer, told):
    text = list(rules(batch, optimizer, 1, None))
    assert len(text) == len(told) + 1
    assert all(word in line for word, line in zip(told, text, strict=False))
    assert all("arXiv" in line for line in text)


def test_the_advice_has_the_rules(capsys):
    assert run(["show", "gpt_6_7b_64a100", "advice", "--set", "training.critical_batch_size=262144"]) == 0
    assert "is 0.5 of the critical batch size" in capsys.readouterr().out
    assert run(["check", "hello", "--set", "training.critical_batch_size=0"]) == 2
    assert "must be above 0, not 0" in capsys.readouterr().err
