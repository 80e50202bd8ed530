"""Tensor parallelism in two, two and a half and three dimensions: volumes against closed forms, and composition."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.simulator.analysis.metrics import hardware_flops, model_flops
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective, Compute
from clustersim.simulator.simulate import simulate

S, H, F, V, B = 64, 128, 512, 1024, 8
"""Sequence, hidden, feed-forward, vocabulary; samples of a micro-batch."""

WIDTH = 2
PRODUCTS = ((H, 3 * H), (H, H), (H, F), (F, H))
"""(inputs, outputs) of the products of a layer."""

UNIFORM = {"bandwidth": "10 GB/s", "latency": "0 us", "accelerator": "a100_80gb"}

MODEL = {
    "num_layers": 2, "hidden_size": H, "num_attention_heads": 8, "ffn_hidden_size": F, "seq_length": S,
    "vocab_size": V, "tie_embeddings": False, "attention": "flash",
}  # fmt: skip


def scenario(gpus, model=(), training=(), **parallelism):
    return BuiltScenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": gpus, **UNIFORM},
            "model": {**MODEL, **dict(model)},
            "training": {"global_batch_size": B, "micro_batch_size": B, "precision": "bf16", **dict(training)},
            "parallelism": {"dp": 1, **parallelism},
            "software": "ideal",
        }
    )  # fmt: skip


def sent(built, axis="tp", kinds=(), layer="layer 0", phases="FBIWR"):
    """Bytes that all ranks together send over *axis* and its parts in a layer, by the definition of each collective."""
    schedule, total = built.schedule(), 0.0
    for rank in range(schedule.mesh.world_size):
        for op in schedule.program(rank).ops:
            if not (isinstance(op, Collective) and op.over.startswith(axis) and op.layer == layer):
                continue
            if op.action.phase not in phases or (kinds and op.kind not in kinds):
                continue
            ranks = len(next(group for group in schedule.mesh.axes[op.over].groups if rank in group))
            factor = {
                "all_reduce": 2 * (ranks - 1) / ranks,
                "broadcast": (ranks - 1) / ranks,
                "reduce": (ranks - 1) / ranks,
            }
            total += op.nbytes * factor.get(op.kind, (ranks - 1) / ranks)
    return total


def simulated(built):
    """Bytes that the ranks send over ``tp`` in a simulated step."""
    check(built.schedule())
    return simulate(built.schedule(), built.cluster()).axis_bytes["tp"]


def grid_difference(one, two):
    """What a model of 2 layers sends more than a model of 1, simulated: the volume of a layer."""
    return simulated(two) - simulated(one)


def of_a_layer(gpus, **parallelism):
    made = (scenario(gpus, {"num_layers": layers, "add_bias_linear": False}, **parallelism) for layers in (1, 2))
    return grid_difference(*made)


def norms(ranks_of_features, shares, exchanging):
    """Sums of two norms in two passes: two fp32 numbers for each row; *exchanging* groups of ranks_of_features."""
    rows = B * S / shares
    return 2 * 2 * 2 * (ranks_of_features - 1) * rows * 2 * 4 * exchanging


def partial(count, ranks, groups):
    """All-reduce of *count* gradients of norms in *groups* groups of *ranks*."""
    return 2 * (ranks - 1) * count * WIDTH * groups


@pytest.mark.parametrize("q", [2, 4])
def test_summa_sends_what_its_closed_form_says(q):
    """(q - 1) (|X| + |W|) in each of the three products: van de Geijn and Watts 1997; Optimus, table 1."""
    expected = sum(3 * (q - 1) * WIDTH * (B * S * k + k * n) for k, n in PRODUCTS)
    expected += norms(q, q, q) + partial(4 * H // q, q, q)
    assert of_a_layer(q * q, tp=q * q, tp_mode="2d") == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("q", "depth"), [(2, 2), (2, 4)])
def test_two_and_a_half_dimensions(q, depth):
    """Each of the grids broadcasts all weights, rows are divided, and gradients of weights are summed over them."""
    expected = sum(WIDTH * (3 * (q - 1) * (B * S * k + depth * k * n) + 2 * (depth - 1) * k * n) for k, n in PRODUCTS)
    expected += norms(q, q * depth, q * depth)
    expected += partial(4 * H // q, q, q * depth) + partial(4 * H // q, depth, q * q)
    made = of_a_layer(q * q * depth, tp=q * q * depth, tp_mode="2.5d", tp_depth=depth)
    assert made == pytest.approx(expected, rel=1e-9)


def closed_form_3d(x, y, z):
    """Singh et al. 2025 (arXiv:2502.08145), equations 1 to 4, all ranks; x and y change places in turn."""
    total = 0.0
    for number, (k, n) in enumerate(PRODUCTS):
        m, (columns, rows) = B * S, (x, y) if number % 2 == 0 else (y, x)
        gathers = 2 * (z - 1) * k * n
        scatters = (z - 1) * k * n
        outputs = 2 * (rows - 1) * m * n
        inputs = 2 * (columns - 1) * m * k
        total += WIDTH * (gathers + scatters + outputs + inputs)
    return total


GRIDS = [(2, 2, 2), (1, 2, 4), (4, 2, 1), (2, 1, 4), (8, 1, 1), (1, 8, 1), (1, 1, 8)]


@pytest.mark.parametrize("grid", GRIDS)
def test_three_dimensions_send_what_the_papers_equations_say(grid):
    x, y, z = grid
    expected = closed_form_3d(x, y, z) + norms(y, z, x * z) + partial(4 * H // y, z, x * y)
    made = of_a_layer(x * y * z, tp={"x": x, "y": y, "z": z})
    assert made == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_weights_are_gathered_before_the_forward_and_the_backward_pass(recompute):
    """With recomputation the backward pass uses the weights that it gathered."""
    built = scenario(2, training={"recompute": recompute}, tp={"z": 2})
    ops = [op for op in built.schedule().program(0).ops if isinstance(op, Collective) and op.layer == "layer 0"]
    phases = Counter((op.kind, op.action.phase) for op in ops)
    again = "R" if recompute == "full" else "B"
    assert phases == {("all_gather", "F"): 4, ("all_gather", again): 4, ("reduce_scatter", "B"): 4}


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(GRIDS), st.sampled_from(["none", "full"]))
def test_overlap_changes_no_volume_and_is_never_slower(grid, recompute):
    x, y, z = grid
    degrees = {"x": x, "y": y, "z": z}
    training = {"recompute": recompute}
    every = ["all_reduce", "reduce_scatter", "all_gather"]
    plain, beside = (scenario(8, (), training, tp=degrees, tp_overlap=how) for how in (False, every))
    times = [simulate(built.schedule(), built.cluster()) for built in (plain, beside)]
    assert times[0].axis_bytes["tp"] == pytest.approx(times[1].axis_bytes["tp"], rel=1e-12)
    assert times[1].step_time <= times[0].step_time * (1 + 1e-9)


def volumes(built):
    ops = (op for op in built.schedule().program(0).ops if isinstance(op, Collective) and op.over.startswith("tp"))
    return Counter((op.kind, op.nbytes) for op in ops if op.layer and op.layer.startswith("layer"))


def test_x_alone_is_megatrons():
    one, grid = scenario(4, tp=4), scenario(4, tp={"x": 4}, tp_overlap=["all_reduce"])
    assert volumes(one) == volumes(grid)
    times = [simulate(built.schedule(), built.cluster()).step_time for built in (one, grid)]
    assert times[0] == pytest.approx(times[1], rel=1e-12)


@pytest.mark.parametrize("grid", [{"x": 1}, {"x": 1, "y": 1, "z": 1}])
def test_one_rank_adds_nothing(grid):
    whole, one = scenario(1), scenario(1, tp=grid)
    assert [str(op) for op in whole.schedule().program(0).ops] == [str(op) for op in one.schedule().program(0).ops]


def test_a_square_grid_of_depth_one_is_summa():
    flat, deep = scenario(4, tp=4, tp_mode="2d"), scenario(4, tp=4, tp_mode="2.5d", tp_depth=1)
    assert volumes(flat) == volumes(deep)


@pytest.mark.parametrize(
    "keys",
    [{"tp": {"x": x, "y": y, "z": z}} for x, y, z in GRIDS] + [{"tp": 4, "tp_mode": "2d"}]
    + [{"tp": 8, "tp_mode": "2.5d", "tp_depth": 2}, {"tp": {"x": 2, "y": 2, "z": 2}, "auto_parallelize": True}],
)  # fmt: skip
def test_ranks_share_all_products(keys):
    """FLOPs of all ranks are those of the model; attention that ranks of y compute alike counts once."""
    built = scenario(8 if keys["tp"] != 4 else 4, **keys)
    timeline = simulate(built.schedule(), built.cluster())
    assert model_flops(built.schedule()) == pytest.approx(built.model.flops(B), rel=1e-9)
    assert hardware_flops(timeline.schedule) >= model_flops(built.schedule()) * (1 - 1e-12)


@pytest.mark.parametrize("grid", GRIDS)
def test_ranks_share_the_parameters_of_products(grid):
    x, y, z = grid
    built = scenario(8, {"add_bias_linear": False}, tp={"x": x, "y": y, "z": z})
    share = built.specification.parallelism.parts["tp"].share(built.model)
    assert share.layers[1].parameters == 12 * H * H // 8 + 4 * H // y


def test_replaced_linear_layers_exchange_samples_for_features():
    """Volumes of each product by AxoNN's ``expert_mode=False``; a rank has one sample of the eight."""
    x, y, z = 2, 2, 2
    built = scenario(8, {"add_bias_linear": False}, tp={"x": x, "y": y, "z": z}, auto_parallelize=True)
    rows = B * S / z
    expected = 0.0
    for k, n in PRODUCTS:
        block = 3 * (z - 1) / z * k * n / (x * y) + 2 * (y - 1) / y * rows * n / x + 2 * (x - 1) / x * rows * k / y
        into = (y - 1) / y * rows / (x * y) * k + (x - 1) / x * rows * k / y
        out = (x - 1) / x * rows * n / x
        back = (y - 1) / y * rows * n / x + (x - 1) / x * rows * n / x + (y - 1) / y * rows * k / y
        expected += 8 * WIDTH * (block + into + out + back)
    assert sent(built) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("gpus", "keys", "message"),
    [
        (8, {"tp": 8, "tp_mode": "2d"}, "parallelism.tp: 8 ranks do not make a square grid of tp_mode 2d; try 4 or 9"),
        (8, {"tp": 8, "tp_mode": "2.5d"}, "parallelism.tp_depth: belongs to tp_mode 2.5d, which needs it"),
        (8, {"tp": 6, "tp_mode": "2.5d", "tp_depth": 2}, "6 ranks do not make 2 square grids of tp_mode 2.5d; try 8"),
        (8, {"tp": {"x": 2}, "tp_mode": "1d"}, "parallelism.tp_mode: must be 3d, not 1d: tp is a grid"),
        (8, {"tp": {"x": 3}}, "parallelism.tp: x = 3 does not divide num_attention_heads = 8 of"),
        (8, {"tp": {"z": 3}}, "a micro-batch of 8 cannot be divided by the 3 ranks of tp that share its samples"),
        (8, {"tp": {"x": 2}, "sequence_parallel": True}, "sequence_parallel: belongs to tp_mode 1d, but it is 3d"),
        (8, {"tp": {"x": 2}, "tp_overlap": True}, "must be a list of all_reduce, reduce_scatter, all_gather"),
        (8, {"tp": 8, "tp_overlap": ["all_reduce"]}, "tp_overlap: must be true or a fraction with tp_mode 1d"),
        (8, {"tp": 8, "auto_parallelize": True}, "auto_parallelize: belongs to AxoNN's grid"),
        (8, {"tp": {"w": 2}}, "parallelism.tp.w: unknown key"),
        (8, {"tp": "many"}, "parallelism.tp: must be"),
    ],
)  # fmt: skip
def test_laws(gpus, keys, message):
    with pytest.raises(ScenarioError, match=message.replace("(", r"\(").replace(")", r"\)")):
        scenario(gpus, **keys).schedule()


def test_gathers_run_ahead_of_their_products():
    """Each gather but the first is issued when the product before it can begin."""
    built = scenario(2, tp={"z": 2}, tp_overlap=["all_gather"])
    ops = built.schedule().program(0).ops
    forward = [op for op in ops if op.action and op.action.phase == "F" and op.layer == "layer 1"]
    gathers = [op for op in forward if isinstance(op, Collective) and op.kind == "all_gather"]
    products = [op for op in forward if isinstance(op, Compute) and any(gather.name in op.after for gather in gathers)]
    assert len(gathers) == len(products) == 4
    for product, following in zip(products, gathers[1:], strict=False):
        names = [op.name for op in ops]
        assert names.index(following.name) < names.index(product.name)


def test_replicas_reduce_scattered_gradients():
    """With reduce-scatters beside the backward pass, the all-reduce over dp begins after them."""
    built = scenario(4, training={"global_batch_size": 2 * B}, tp={"z": 2}, tp_overlap=["reduce_scatter"], dp=2)
    timeline = simulate(built.schedule(), built.cluster())
    rank = built.schedule().program(0).ops
    op, _, _, begin, end, _ = timeline.of(0)
    named = {rank[int(number)].name: (b, e) for number, b, e in zip(op, begin, end, strict=True)}
    reduced = [name for name in named if ".bucket" in name]
    assert reduced
    last = reduced[-1]
    assert named[last][0] >= max(
        e for name, (_, e) in named.items() if "reduce_scatter" in name and "embedding" in name
    )


@pytest.mark.parametrize(
    "keys",
    [
        {"tp": {"x": 2, "y": 2, "z": 2}, "tp_overlap": ["all_reduce", "reduce_scatter", "all_gather"]},
        {"tp": 4, "tp_mode": "2d", "dp": 2},
        {"tp": 8, "tp_mode": "2.5d", "tp_depth": 2},
        {"tp": {"x": 2, "z": 2}, "dp": 2, "tp_overlap": ["reduce_scatter"]},
    ],
)
def test_engines_and_folding_agree(keys):
    built = scenario(8, training={"global_batch_size": 2 * B, "recompute": "full"}, **keys)
    times = [
        simulate(built.schedule(), built.cluster(), engine=engine, fold=fold).step_time
        for engine, fold in (("simpy", False), ("simpy", True), ("compiled", True))
    ]
    assert times == pytest.approx([times[0]] * 3, rel=1e-9)


def test_tied_embeddings_of_two_stages_are_shares_of_the_grid():
    """The last stage has a copy of its rank's part of the table, and the two sum its gradient."""
    model = {"tie_embeddings": True, "add_bias_linear": False}
    built = scenario(8, model, {"micro_batch_size": 4}, tp={"y": 2, "z": 2}, pp=2, dp=1)
    sums = [op for op in built.schedule().program(0).ops if isinstance(op, Collective) and op.over == "embedding"]
    assert [op.nbytes for op in sums] == [V * H / 4 * WIDTH]
    timeline = simulate(built.schedule(), built.cluster())
    assert timeline.axis_bytes["pp"] == pytest.approx(2 * 2 * 4 / 2 * S * H / 2 * WIDTH * 4)
