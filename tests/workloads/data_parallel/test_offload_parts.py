"""States off the GPU of ranks that update a part of their parameters, or share a part: experts, adapters."""

from collections import defaultdict
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Copy
from clustersim.simulator.schedule.program import Program

EXPERTS = {"preset": "mixtral_8x7b", "num_layers": 2, "seq_length": 128}
QLORA = {"preset": "llama3_8b", "num_layers": 2, "seq_length": 128, "lora": {"rank": 16, "quantised": "nf4"}}
HOST = {"optimizer": "host", "gradients": "host"}
AWAY = {**HOST, "parameters": "host"}
ZERO_2, ZERO_3, FSDP = {"method": "zero", "stage": 2}, {"method": "zero", "stage": 3}, {"method": "fsdp"}


def program(model: dict[str, Any], data: dict[str, Any], offload: dict[str, Any] | None, **degrees: int) -> Program:
    """Of four GPUs with one micro-batch each."""
    training = {"global_batch_size": 4, "micro_batch_size": 1, "precision": "bf16"}
    whole: dict[str, Any] = {
        "version": 1,
        "cluster": {"preset": "dgx_a100_80gb", "node": {"accelerators": 4}},
        "model": model,
        "training": {**training, "offload": offload} if offload else training,
        "parallelism": {**degrees, "data": data},
    }
    (own,) = Scenario.model_validate(whole).schedule().programs
    return own


def left(own: Program) -> dict[str, float]:
    """Bytes by category that *own* allocates and does not free."""
    total: defaultdict[str, float] = defaultdict(float)
    for op in own.ops:
        for sign, amounts in ((1, op.allocates), (-1, op.frees)):
            for category, nbytes in amounts.items():
                total[category] += sign * nbytes
    return {category: nbytes for category, nbytes in total.items() if abs(nbytes) > 1}


def copied(own: Program, to: str, phase: str) -> float:
    """Bytes that *own* copies in passes of *phase*, without those that the cores of the host move."""
    ops = [op for op in own.ops if isinstance(op, Copy) and not op.on_cores and op.to == to]
    return sum(op.nbytes for op in ops if op.action and op.action.phase == phase)


@pytest.mark.parametrize("ep", [1, 2, 4])
@pytest.mark.parametrize(
    ("data", "offload"), [(d, o) for d in (ZERO_2, ZERO_3, FSDP) for o in (None, HOST)] + [(ZERO_3, AWAY), (FSDP, AWAY)]
)
def test_buffers_of_sharded_experts_are_freed_though_no_other_rank_has_these_experts(ep, data, offload):
    assert left(program(EXPERTS, data, offload, ep=ep)) == {}


@pytest.mark.parametrize("ep", [1, 2, 4])
@pytest.mark.parametrize(("data", "width"), [(ZERO_3, 2), (FSDP, 4)])
def test_all_parameters_of_a_rank_are_fetched_for_each_pass_and_its_gradients_leave(ep, data, width):
    own = program(EXPERTS, data, AWAY, ep=ep)
    updated = own.resident["host.optimizer"] / 12
    assert copied(own, "gpu", "F") == pytest.approx(width * updated)
    assert copied(own, "host", "B") == pytest.approx(width * updated)


@pytest.mark.parametrize("size", [2, 4])
def test_groups_of_zero_fetch_their_shards_and_gather_them(size):
    own = program(
        QLORA, {"method": "zero", "groups": dict.fromkeys(("parameters", "gradients", "optimizer"), size)}, AWAY
    )
    assert copied(own, "gpu", "F") == pytest.approx(own.resident["host.parameters"])
    assert left(own) == {}


def test_parameters_off_the_gpu_in_other_groups_than_their_states_are_refused():
    groups = {"parameters": 2, "gradients": 2, "optimizer": 4}
    with pytest.raises(ScenarioError, match=r"offload.parameters: is host, but zero, groups of 2, 2, 4 share"):
        program(QLORA, {"method": "zero", "groups": groups}, AWAY)


@pytest.mark.parametrize(("data", "away"), [(ZERO_3, 1.0), (FSDP, 0.0)])
def test_frozen_weights_leave_for_the_host_as_they_are_held(data, away):
    on_gpu, on_host = (program(QLORA, data, offload) for offload in (HOST, AWAY))
    adapters = on_gpu.resident["host.optimizer"] / 12
    # FSDP's trained parameters in fp32 are those of the optimizer
    kept = on_gpu.resident["parameters"] - (1.0 - away) * 2 * adapters
    assert on_host.resident["host.parameters"] == pytest.approx(kept)
    fetched = on_gpu.resident["parameters"] + (1.0 - away) * 2 * adapters
    assert copied(on_host, "gpu", "F") == pytest.approx(fetched)


def test_a_single_rank_buffers_gradients_of_adapters_alone():
    model = {**QLORA, "num_layers": 1}
    on_host = program(model, {"method": "ddp"}, HOST, tp=4)
    most = max(op.allocates.get("buffers", 0.0) for op in on_host.ops if op.action and op.action.phase == "B")
    adapters = on_host.resident["host.optimizer"] / 12
    # the gradients of the layer, all of them adapters', in fp32 at most
    assert 0 < most <= 4 * adapters
