"""Activations on the host: when copies begin and end, what is held where, and that every order bears it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.analysis.memory import curve, peak
from clustersim.simulator.analysis.metrics import breakdown
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.lookup import function, names
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Copy
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.memory.offloaded_activations import CopyBuffers, named_layers, offloaded
from clustersim.workloads.memory.recompute import recompute
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.parallelism.pipeline import pipeline_parallel
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

ORDERS = [name for name in names("clustersim.workloads.pipelines") if not name.startswith("_")]
TAPE = 8.0
DOUBLE = CopyBuffers()


def step(layers=6, *, micro_batches=1, buffers=DOUBLE, recomputed=False, bandwidth=8.0, chosen=None):
    """A step of a chain with F = 1 s, B = 2 s and 8 B a layer, and its timeline; a copy takes 8 / *bandwidth* s."""
    model = unit_model(layers, 1.0, 2.0, activations=TAPE)
    schedule = compute(model, one_f_one_b(1, micro_batches), micro_batch_size=1)
    if recomputed:
        schedule = recompute(schedule, model, "full", micro_batch_size=1)
    schedule = offloaded(schedule, chosen or [layer.name for layer in model.layers], buffers)
    check(schedule)
    return schedule, simulate(schedule, uniform(1, bandwidth, 0.0, 1))


def spans(timeline, end=""):
    """{name: (begin, end)} of the ops with names that end so."""
    return {span.op.name: (span.begin, span.end) for span in timeline.spans(0) if span.op.name.endswith(end)}


def test_copies_that_take_less_than_a_layer_cost_nothing():
    _, timeline = step(bandwidth=8.0)
    assert timeline.makespan == pytest.approx(6 * 3.0)
    assert breakdown(timeline)["copy"] == 0.0
    # one tape is made or read, and another one is on its way; at the turn those of the last two layers
    assert curve(timeline, 0).total.max() == pytest.approx(2 * TAPE)


def test_a_copy_begins_when_its_layer_ends_and_frees_when_it_ends():
    _, timeline = step(bandwidth=16.0)
    offloads = spans(timeline, "offload")
    assert offloads == {f"0F0.layer {i} offload": (i + 1.0, i + 1.5) for i in range(4)}
    held = curve(timeline, 0)
    after = dict(zip(held.times.tolist(), held.total.tolist(), strict=True))
    assert after[1.5] == TAPE
    assert after[1.0] == 2 * TAPE


def test_prefetch_begins_when_the_pass_before_the_last_one_ends():
    _, timeline = step(bandwidth=16.0)
    backward, back = spans(timeline), spans(timeline, "prefetch")
    for i in range(4):
        due = backward[f"0B0.layer {i + 2}"][1]
        assert back[f"0B0.layer {i} prefetch"] == (due, due + 0.5)
        assert backward[f"0B0.layer {i}"][0] >= due + 0.5


def test_the_forward_waits_for_copies_slower_than_layers():
    """With a copy of 4 s: F0 0-1, copy 0 1-5, F1 1-2, F2 waits for copy 0, F3 for copy 1 (5-9), F4 for copy 2 ..."""
    _, timeline = step(bandwidth=2.0)
    begins = [spans(timeline)[f"0F0.layer {i}"][0] for i in range(6)]
    assert begins == pytest.approx([0, 1, 5, 9, 13, 17])
    parts = breakdown(timeline)
    assert parts["copy"] == pytest.approx(timeline.makespan - 18.0)
    assert parts["copy"] > 0


@pytest.mark.parametrize("outstanding", [1, 2, 3])
def test_no_more_copies_than_allowed_are_waited_for(outstanding):
    """While a forward pass runs, the GPU holds its own tape and those of the copies under way."""
    _, timeline = step(10, buffers=CopyBuffers(outstanding, 1), bandwidth=1.0)
    held, last = curve(timeline, 0), spans(timeline)["0F0.layer 7"][1]
    assert held.total[held.times < last].max() == pytest.approx((1 + outstanding) * TAPE)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_copy_back_begins_so_many_passes_ahead(ahead):
    _, timeline = step(10, buffers=CopyBuffers(1, ahead), bandwidth=16.0)
    order = [f"0F0.layer {i}" for i in range(10)] + [f"0B0.layer {i}" for i in reversed(range(10))]
    computed, back = spans(timeline), spans(timeline, "prefetch")
    assert len(back) == (18 - ahead) // 2
    for name, (begin, end) in back.items():
        needed = name.removesuffix(" prefetch")
        assert begin == computed[order[order.index(needed) - 1 - ahead]][1]
        assert computed[needed][0] >= end


def test_recomputed_layers_send_their_input_only():
    schedule, timeline = step(6, recomputed=True)
    copied = [op for op in schedule.programs[0].ops if isinstance(op, Copy)]
    assert copied
    assert all(op.nbytes == TAPE for op in copied)
    assert breakdown(timeline)["recompute"] == pytest.approx(6.0)


def test_named_layers_and_indices_name_the_same():
    model = unit_model(4, 1.0, 2.0)
    assert named_layers(model, [0, "layer 3"]) == ["layer 0", "layer 3"]
    with pytest.raises(ScheduleError, match=r'"layr 3" is no layer of unit; the nearest of its 4 are layer 3'):
        named_layers(model, ["layr 3"])
    with pytest.raises(ScheduleError, match="layer 4: unit has the layers 0 to 3"):
        named_layers(model, [4])


def held_at_end(timeline, rank, host):
    held = curve(timeline, rank, host=host)
    return {name: nbytes[-1] for name, nbytes in held.by_category.items() if name.endswith("activations")}


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_frees_on_both_sides_what_it_allocates(name):
    """Also orders that recompute, split the backward pass or run two directions."""
    try:
        order = function("clustersim.workloads.pipelines", name)(2, 4)
    except TypeError:
        order = function("clustersim.workloads.pipelines", name)(2, 4, 2)
    model = unit_model(2 * order.stages, 1.0, 2.0, activations=TAPE)
    schedule = compute(model, order, micro_batch_size=1, stages=stages_of(model, order.stages, "balanced"))
    schedule = pipeline_parallel(schedule, model, micro_batch_size=1)
    away = offloaded(schedule, [layer.name for layer in model.layers])
    check(away)
    timeline = simulate(away, uniform(2, 100.0, 0.0, 1))
    for rank in range(2):
        for host in (False, True):
            assert all(nbytes == pytest.approx(0.0) for nbytes in held_at_end(timeline, rank, host).values())


@given(
    layers=st.integers(3, 7),
    micro_batches=st.integers(1, 3),
    outstanding=st.integers(1, 3),
    ahead=st.integers(1, 3),
    recomputed=st.booleans(),
    bandwidth=st.sampled_from([0.5, 2.0, 8.0, 64.0]),
)
def test_conservation(layers, micro_batches, outstanding, ahead, recomputed, bandwidth):
    """Traffic is what the schedule copies, nothing stays behind, links are at most full, half as fast is no faster."""
    how = {"micro_batches": micro_batches, "buffers": CopyBuffers(outstanding, ahead), "recomputed": recomputed}
    schedule, timeline = step(layers, bandwidth=bandwidth, **how)
    copies = [op for op in schedule.programs[0].ops if isinstance(op, Copy)]
    to_host = sum(op.nbytes for op in copies if op.to == "host")
    assert to_host == sum(op.nbytes for op in copies if op.to == "gpu")
    # each copy passes the port of the GPU and that of the host
    assert sum(timeline.link_bytes.values()) == pytest.approx(2 * sum(op.nbytes for op in copies))
    for nbytes in timeline.link_bytes.values():
        assert nbytes <= bandwidth * timeline.makespan * (1 + 1e-9)
    for host in (False, True):
        assert all(nbytes == pytest.approx(0.0) for nbytes in held_at_end(timeline, 0, host).values())
        assert curve(timeline, 0, host=host).total.min(initial=0.0) >= 0.0
    assert peak(timeline).host_bytes <= to_host
    _, slower = step(layers, bandwidth=bandwidth / 2, **how)
    assert slower.makespan >= timeline.makespan * (1 - 1e-12)


def test_both_engines_agree():
    schedule, timeline = step(6, micro_batches=2, bandwidth=3.0)
    cluster = uniform(1, 3.0, 0.0, 1)
    for engine in ("simpy", "compiled"):
        assert simulate(schedule, cluster, engine=engine).makespan == pytest.approx(timeline.makespan, rel=1e-12)


def test_layers_that_are_not_chosen_stay():
    schedule, _ = step(6, chosen=["layer 1"])
    assert {op.layer for op in schedule.programs[0].ops if isinstance(op, Copy)} == {"layer 1"}
