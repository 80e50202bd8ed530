"""The estimate beside the simulation, its bounds, and the prices of transfers."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.run.running import communicator, simulated
from clustersim.scenarios.search.candidate_evaluation import LEVELS
from clustersim.scenarios.search.estimator import Estimator
from clustersim.scenarios.search.least_memory import least_bytes, most_buffers
from clustersim.scenarios.search.lower_bounds import kernel_seconds, least_seconds
from clustersim.scenarios.search.planner import Planner
from clustersim.scenarios.search.prices import Transfers
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Collective, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from tests.scenarios.search.jobs import job

SHIPPED = (
    "dgx_a100_gpt2_xl_ddp",
    "gpipe_vs_varuna",
    "gpt2_xl_zero_zhores",
    "gpt3_175b_1024a100",
    "gpt_6_7b_64a100",
    "hello",
    "lecture_3d_32gpus",
    "llama3_8b_fsdp_dgx_h100",
    "naive_vs_ddp",
    "zhores_resnet50_ddp",
)
"""Shipped scenarios; those of more than 1,024 GPUs are in tests/benchmarks/plan_estimates.py."""

FEW = ("gpipe_vs_varuna", "gpt2_xl_zero_zhores", "hello", "llama3_8b_fsdp_dgx_h100", "zhores_resnet50_ddp")
"""Those of the short suite: a pipeline, each stage of ZeRO, FSDP, and a ring that hides."""


def errors(names: tuple[str, ...]) -> dict[str, float]:
    """The relative error of the estimated step time by scenario and variant."""
    found = {}
    for name in names:
        scenario = Scenario.load(name)
        for variant, one in (scenario.variants or {name: scenario}).items():
            estimate = Estimator(one).estimate(one)
            assert estimate.seconds is not None
            found[f"{name}: {variant}"] = estimate.seconds / one.run().timeline.step_time - 1
    return found


@pytest.mark.parametrize("names", [FEW, pytest.param(SHIPPED, marks=pytest.mark.exhaustive)], ids=["few", "all"])
def test_estimates_of_shipped_scenarios_are_near_the_simulation(names: tuple[str, ...]) -> None:
    found = [abs(error) for error in errors(names).values()]
    assert median(found) < 0.001
    assert max(found) < 0.02


def test_the_memory_of_an_estimate_is_that_of_check() -> None:
    """The reserved memory is a little more: buffers of exchanges count as activations, which fragment."""
    from clustersim.scenarios.build.memory_need import memory_need

    for name in ("gpt_6_7b_64a100", "lecture_3d_32gpus"):
        scenario = Scenario.load(name)
        need = Estimator(scenario).estimate(scenario).need
        checked = memory_need(scenario, scenario.schedule())
        assert need.tensors == pytest.approx(checked.tensors, rel=1e-9)
        assert checked.nbytes <= need.nbytes < 1.001 * checked.nbytes


ORDERS = (
    "1f1b",
    "gpipe",
    "interleaved",
    "looped_bfs",
    "zero_bubble_h1",
    "zero_bubble_h2",
    "zero_bubble_v",
    "interleaved_zero_bubble",
    "dual_pipe",
    "dual_pipe_v",
)


@pytest.mark.parametrize("schedule", ORDERS)
def test_few_micro_batches_stand_for_many(schedule: str) -> None:
    virtual = {"virtual_stages": 2} if schedule.startswith(("interleaved", "looped_bfs")) else {}
    parallelism = {"pp": 2, "tp": 2, "schedule": schedule, **virtual}
    scenario = job(parallelism=parallelism, training={"micro_batch_size": 1, "global_batch_size": 64})
    assert scenario.derived.micro_batches == 32
    estimate, result = Estimator(scenario).estimate(scenario), scenario.run()
    assert estimate.seconds == pytest.approx(result.timeline.step_time, rel=0.01)
    assert estimate.need.tensors == pytest.approx(result.memory.peak.nbytes, rel=0.03)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("pp", "schedule"),
    [
        (8, "interleaved"),
        pytest.param(4, "1f1b", marks=pytest.mark.exhaustive),
        pytest.param(8, "dual_pipe_v", marks=pytest.mark.exhaustive),
    ],
)
def test_the_clock_is_that_of_the_longest_stage(pp: int, schedule: str) -> None:
    """The last stage has the head, so a step waits for the slowest of its GPUs, not of all."""
    values = {
        "version": 1,
        "name": "clock",
        "cluster": {"preset": "dgx_a100_80gb", "nodes": 4},
        "model": {"preset": "gpt_22b"},
        "training": {"global_batch_size": 64, "micro_batch_size": 1},
        "parallelism": {"tp": 2, "pp": pp, "schedule": schedule},
    }
    scenario = Scenario.model_validate(values)
    estimator = Estimator(scenario)
    assert 32 / pp <= estimator.waited_for(scenario) < 32
    assert estimator.estimate(scenario).seconds == pytest.approx(scenario.run().timeline.step_time, rel=0.004)


def test_gathers_and_reductions_share_a_slow_network() -> None:
    """ZeRO-3 on one NIC a node: exchanges take most of the step, and its two streams share the NIC."""
    parallelism = {"data": {"method": "zero", "stage": 3}}
    scenario = job(parallelism=parallelism, training={"micro_batch_size": 1, "global_batch_size": 32})
    slow = scenario.changed({"cluster.node.nic.bandwidth": "10 Gb/s"}, "a slow network")
    seconds = slow.run().timeline.step_time
    assert seconds > 2 * scenario.run().timeline.step_time
    assert Estimator(slow).estimate(slow).seconds == pytest.approx(seconds, rel=0.01)


def test_memory_alone_is_estimated_of_what_does_not_fit() -> None:
    scenario = Scenario.load("gpt_6_7b_64a100")
    estimate = Estimator(scenario).estimate(scenario, within=1e9)
    assert estimate.seconds is None
    assert estimate.need.nbytes > 1e9


@pytest.mark.parametrize("every", [31, pytest.param(13, marks=pytest.mark.exhaustive)])
def test_bounds_are_below_the_estimates_of_candidates(every: int) -> None:
    search = {
        "tp": "auto",
        "sequence_parallel": "auto",
        "pp": "auto",
        "schedule": [*ORDERS, "pipedream_2bw"],
        "virtual_stages": "auto",
        "data": "auto",
        "micro_batch_size": [1, 4],
        "recompute": ["none", "selective", "full"],
    }
    scenario = job(search, model={"attention": "unfused"})
    space, estimator = Space(scenario), Estimator(scenario)
    planner = Planner(scenario)
    planner.bound(planner.candidates)
    told = [one for one in planner.candidates if not planner.bounds[one.key].kind]
    estimated = set()
    for candidate in told[::every]:
        variant = space.variant(candidate)
        try:
            estimate = estimator.estimate(variant)
        except ScenarioError as error:
            assert "or more" in str(error)  # an order that wants more micro-batches
            continue
        estimated.add(candidate.values["schedule"])
        assert estimate.seconds is not None
        bounds = [bound(estimator, variant) for bound in LEVELS]
        assert bounds == sorted(bounds)
        assert 0 <= bounds[0] <= bounds[-1] <= estimate.seconds
        assert least_bytes(estimator, variant) <= estimate.need.nbytes
    assert estimated >= set(ORDERS)


def test_states_of_experts_are_divided_over_the_ranks_with_the_same_experts() -> None:
    """The bound of memory is near its estimate where experts are nearly all weights, and never above it."""
    model = {"num_experts": 8, "moe_router_topk": 2, "ffn_hidden_size": 16384, "seq_length": 32}
    search = {
        "tp": "auto",
        "sequence_parallel": [True],
        "ep": "auto",
        "expert_tp": "auto",
        "pp": [1, 2],
        "data": "auto",
    }
    scenario = job(search, model=model, training={"micro_batch_size": 1, "global_batch_size": 16})
    space, estimator = Space(scenario), Estimator(scenario)
    planner = Planner(scenario)
    planner.bound(planner.candidates)
    told = [one for one in planner.candidates if not planner.bounds[one.key].kind]
    shares = []
    for candidate in told[::5]:
        variant = space.variant(candidate)
        shares.append(least_bytes(estimator, variant) / estimator.estimate(variant).need.nbytes)
    assert len(shares) > 10
    assert 0.6 < min(shares) < max(shares) <= 1


@pytest.mark.parametrize(("schedule", "recompute"), [("gpipe", "full"), ("varuna", "none")])
def test_the_bound_counts_stages_as_often_as_the_order_recomputes_them(schedule: str, recompute: str) -> None:
    """Both recompute whole stages, but not what runs backward at once: the last micro-batch, the last stage."""
    parallelism = {"pp": 4, "tp": 2, "schedule": schedule, "data": {"method": "ddp"}}
    training = {"micro_batch_size": 4, "recompute": recompute}
    scenario = job(parallelism=parallelism, training=training)
    estimator = Estimator(scenario)
    estimate = estimator.estimate(scenario).seconds
    assert estimate is not None
    assert 0.8 * estimate < least_seconds(estimator, scenario) <= estimate


@pytest.mark.parametrize(
    ("pp", "data", "software"),
    [
        (1, {"method": "fsdp"}, "megatron"),
        (2, {"method": "fsdp"}, "megatron"),
        # without the host's hooks, which take longer than gathers
        (1, {"method": "zero", "stage": 3}, "ideal"),
    ],
)
def test_the_bound_of_sharded_parameters_counts_their_gathers(pp: int, data: dict[str, Any], software: str) -> None:
    # small micro-batches: the network is the bottleneck
    training = {"micro_batch_size": 1, "global_batch_size": 64}
    scenario = job(parallelism={"pp": pp, "data": data}, training=training, software=software)
    estimator = Estimator(scenario)
    estimate = estimator.estimate(scenario).seconds
    assert estimate is not None
    least = least_seconds(estimator, scenario)
    assert kernel_seconds(estimator, scenario) < 0.5 * estimate
    assert 0.6 * estimate < least <= estimate


def test_the_bound_counts_the_copies_around_reductions() -> None:
    """FSDP reads and writes the flat gradients of each micro-batch four times; ZeRO-3 copies nothing."""
    training = {"micro_batch_size": 1, "global_batch_size": 64}
    bounds = []
    for data in ({"method": "fsdp"}, {"method": "zero", "stage": 3}):
        scenario = job(parallelism={"data": data}, training=training, software="fsdp")
        bounds.append(kernel_seconds(Estimator(scenario), scenario))
    assert scenario.model is not None
    gpu = scenario.cluster().accelerator(scenario.derived.devices[0])
    passes = 4 * 2 * scenario.model.trainable_parameters * scenario.derived.micro_batches
    assert bounds[0] - bounds[1] == pytest.approx(passes / (gpu.memory_bandwidth * gpu.memory_efficiency), rel=1e-6)


def test_the_bound_counts_the_messages_of_a_pipeline() -> None:
    """Between 2 ranks with 2 stages each, a micro-batch crosses 3 times each way; rank 0 waits for 1 + 2 messages."""
    parallelism = {"pp": 2, "tp": 2, "schedule": "interleaved", "virtual_stages": 2, "data": {"method": "ddp"}}
    bounds = []
    for seconds in (0.0, 5.0):
        scenario = job(parallelism=parallelism, software={"preset": "megatron", "exchange": f"{seconds} s"})
        bounds.append(kernel_seconds(Estimator(scenario), scenario))
    # rank 1 waits for 2 + 1, begins one message later and ends one message later
    assert bounds[1] - bounds[0] == pytest.approx((3 * scenario.derived.micro_batches + 1) * 5.0, rel=0.01)


METHODS = [{"method": "ddp"}, {"method": "fsdp"}, *({"method": "zero", "stage": stage} for stage in range(4))]


@pytest.mark.parametrize("software", ["megatron", "fsdp", "huggingface_deepspeed"])
@pytest.mark.parametrize("data", METHODS, ids=lambda data: "-".join(map(str, data.values())))
def test_a_bound_has_all_that_is_held_for_a_time(data: dict[str, Any], software: str) -> None:
    scenario = job(parallelism={"data": data}, training={"micro_batch_size": 2}, software=software)
    estimator = Estimator(scenario)
    (program,) = estimator.schedule(scenario, scenario.derived.micro_batches).programs
    held = most = 0.0
    ending: dict[str, float] = {}
    for op in program.ops:
        held -= ending.pop(op.stream, 0.0)
        held += sum(nbytes for name, nbytes in op.allocates.items() if name != "activations")
        most = max(most, held)
        ending[op.stream] = sum(nbytes for name, nbytes in op.frees.items() if name != "activations")
    assert most <= most_buffers(estimator, scenario, [[0]])


def test_the_bound_of_memory_is_near_the_estimate_if_activations_are_most() -> None:
    scenario = job(parallelism={"data": {"method": "zero", "stage": 1}}, training={"micro_batch_size": 4})
    estimator = Estimator(scenario)
    need = estimator.estimate(scenario).need
    fragmentation = need.reserved["fragmentation"]
    assert fragmentation > 0.05 * need.tensors
    least = least_bytes(estimator, scenario) - scenario.software.context_bytes
    assert 0.85 * (need.tensors + fragmentation) < least <= need.tensors + fragmentation


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_all_groups_of_an_axis_share_the_links(tp: int) -> None:
    scenario = job(parallelism={"tp": tp})
    mesh, network = scenario.schedule().mesh, communicator(scenario)
    op = Collective(name="sum", kind="all_reduce", over="dp", nbytes=64e6)
    timeline = simulated(scenario, Schedule(mesh, (Program("rank", (op,)),), (0,) * mesh.world_size))
    group = mesh.axes["dp"].groups[0]
    plan = Transfers(network).plan(op, mesh.axes["dp"], group)
    assert plan.alone == pytest.approx(timeline.makespan, rel=1e-6)
    alone = network.collective("all_reduce", "dp", group, 64e6).alone
    assert plan.alone == pytest.approx(tp * alone, rel=0.05), "one NIC a node carries tp groups"


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_groups_that_fill_no_link_take_as_long_as_alone(tp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each GPU has a NIC. No simulation is needed to know it."""
    scenario = job(parallelism={"tp": tp}).changed({"cluster.node.nics": 4}, "a NIC for each GPU")
    mesh, network = scenario.schedule().mesh, communicator(scenario)
    op = Collective(name="sum", kind="all_reduce", over="dp", nbytes=64e6)
    timeline = simulated(scenario, Schedule(mesh, (Program("rank", (op,)),), (0,) * mesh.world_size))
    monkeypatch.delattr("clustersim.scenarios.search.prices.SimulationRun")
    plan = Transfers(network).plan(op, mesh.axes["dp"], mesh.axes["dp"].groups[0])
    assert plan.alone == pytest.approx(timeline.makespan, rel=1e-9)


def test_all_messages_between_two_stages_share_the_links() -> None:
    scenario = job(parallelism={"tp": 4, "pp": 2})
    mesh = scenario.schedule().mesh
    send = Send(name="send", over="pp", peer=1, nbytes=64e6)
    receive = Recv(name="receive", over="pp", peer=0, nbytes=64e6)
    programs = (Program("sender", (send,)), Program("receiver", (receive,)))
    timeline = simulated(scenario, Schedule(mesh, programs, tuple(mesh.axes["pp"].places(8)[1].tolist())))
    plan = Transfers(communicator(scenario)).plan(send, mesh.axes["pp"], mesh.axes["pp"].groups[0])
    assert plan.alone == pytest.approx(timeline.makespan, rel=1e-6)
