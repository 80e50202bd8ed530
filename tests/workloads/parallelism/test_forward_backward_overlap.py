"""Batch-level overlap: pairs of a forward and a backward, woven so that exchanges run beside computation."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective, Compute
from clustersim.simulator.schedule.pipeline_order import Order, slots
from clustersim.workloads.parallelism.expert import paired
from clustersim.workloads.pipelines.interleaved import interleaved

MODEL = {
    "num_layers": 8,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "ffn_hidden_size": 4096,
    "seq_length": 2048,
    "vocab_size": 1000,
    "activation": "swiglu",
    "attention": "flash",
    "dropout": 0,
    "num_experts": 8,
    "moe_shared_expert_intermediate_size": 4096,
}


def scenario(how: str, recompute: str = "none", **parallelism: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_h100", "nodes": 2},
            "model": MODEL,
            "training": {"global_batch_size": 64, "micro_batch_size": 1, "precision": "bf16", "recompute": recompute},
            "parallelism": {"ep": 8, "moe_overlap": how, **parallelism},
            "software": "ideal",
        }
    )


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
    {"data": {"method": "zero", "stage": 1}},
    {"ep_domain": 4},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_same_ops_run_in_less_time(layout: dict[str, Any]) -> None:
    plain, woven = scenario("none", **layout), scenario("batch", **layout)
    for one, other in zip(plain.schedule().programs, woven.schedule().programs, strict=True):
        kernels = [Counter(k for op in p.ops if isinstance(op, Compute) for k in op.kernels) for p in (one, other)]
        assert kernels[0] == kernels[1]
        moved = [
            Counter((op.kind, op.over, op.nbytes) for op in p.ops if isinstance(op, Collective)) for p in (one, other)
        ]
        assert moved[0] == moved[1]
    check(woven.schedule())
    before, after = plain.run().summary(), woven.run().summary()
    assert before["traffic_bytes"] == after["traffic_bytes"]
    assert after["breakdown_s"]["exposed_ep"] < 0.7 * before["breakdown_s"]["exposed_ep"]
    assert after["step_time_s"] < before["step_time_s"]


@pytest.mark.parametrize("domain", [{}, {"ep_domain": 4}], ids=str)
@pytest.mark.parametrize("name", [pytest.param("dual_pipe", marks=pytest.mark.exhaustive), "dual_pipe_v"])
def test_orders_that_have_pairs_overlap_by_themselves(name: str, domain: dict[str, Any]) -> None:
    """At most half of the exchanges is exposed that a pipeline without pairs exposes."""
    both = [scenario(how, pp=2, schedule=name, **domain) for how in ("none", "batch")]
    exposed, asked = (one.run().summary()["breakdown_s"]["exposed_ep"] for one in both)
    plain = scenario("none", pp=2, **domain).run().summary()["breakdown_s"]["exposed_ep"]
    assert exposed == asked < plain / 2


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("layout", [*LAYOUTS, {"pp": 2, "schedule": "dual_pipe_v"}], ids=str)
def test_what_is_recomputed_runs_before_its_backward(layout: dict[str, Any], recompute: str) -> None:
    check(scenario("batch", recompute, **layout).schedule())


def test_gathers_of_layers_keep_the_order() -> None:
    """A gather stands ahead of its layer in another action, so that nothing is woven."""
    check(scenario("batch", data={"method": "fsdp"}).schedule())


def test_one_more_micro_batch_is_held() -> None:
    """Its forward pass ends before the backward pass of the one before begins."""
    kept = [scenario(how).run().summary()["memory"]["by_category_bytes"]["activations"] for how in ("none", "batch")]
    assert kept[1] == pytest.approx(2 * kept[0], rel=0.2)


def test_pairs_of_an_interleaved_order_keep_it_full() -> None:
    """One more forward before the first backward; the makespan in slots grows by that of one pair at most."""
    order = interleaved(4, 16, virtual_stages=2)
    made = paired(order)
    assert Counter(action for row in made.rows for action in row) == Counter(a for row in order.rows for a in row)
    ends = [max(row[-1].end for row in slots(one)) for one in (order, made)]
    assert ends[1] <= ends[0] + 3
    assert all(made.rows[rank][0] == order.rows[rank][0] for rank in range(4))


def test_an_order_with_pairs_keeps_them() -> None:
    order = Order.parse("0F0,(0F1;0B0)OVERLAP_F_B,0B1")
    assert paired(order) is order


def test_split_backwards_have_no_pairs() -> None:
    with pytest.raises(ScenarioError, match="pairs of a forward and a whole backward: take interleaved, dual_pipe_v"):
        scenario("batch", pp=2, schedule="zero_bubble_h1").schedule()
