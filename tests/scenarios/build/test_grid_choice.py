"""The grid that AxoNN's communication model chooses, against brute force and its own rules."""

from itertools import product

import pytest

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.description import notes
from clustersim.scenarios.build.grid_choice import NEAR, profiled
from clustersim.simulator.network.library.calibration_file import transport
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.parallelism._tensor_grid import FourDimensions, LayerProduct, communication_seconds

SCENARIO = {
    "version": 1,
    "cluster": {"preset": "perlmutter", "nodes": 4},
    "model": {
        "num_layers": 4, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 1024, "vocab_size": 51200,
        "attention": "flash",
    },
    "training": {"global_batch_size": 32, "precision": "bf16", "recompute": "full"},
}  # fmt: skip


def chosen(**parallelism):
    return BuiltScenario.model_validate({**SCENARIO, "parallelism": parallelism})


def test_equations_of_one_product_by_hand():
    """Weights k n / (x y): gathered twice and scattered over z; outputs summed over y, inputs over x; then replicas."""
    grid, rate = FourDimensions(2, 4, 8, 2), 1e9
    k, n, rows = 64, 96, 512
    m, block = rows / (8 * 2), k * n / (2 * 4)
    sums = 2 * 3 / 4 * m * n / 2 + 2 * 1 / 2 * m * k / 4
    expected = (2 * (3 * 7 / 8 * block + sums) + 4 * 2 * 1 / 2 * block / 8) / rate
    found = communication_seconds([LayerProduct(k, n)], rows, grid, lambda before, ranks: rate, width=2)
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_second_product_of_a_block_is_the_first_one_turned_round():
    grid, turned = FourDimensions(2, 4, 2, 1), FourDimensions(4, 2, 2, 1)
    rate = {2: 1e9, 4: 3e9}.get
    one, two = LayerProduct(64, 96), LayerProduct(64, 96, transposed=True)
    seconds = [
        communication_seconds([made], 512, where, lambda before, ranks: rate(ranks, 1e9), width=2)
        for made, where in ((one, grid), (two, turned))
    ]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-12)


def test_auto_is_as_good_as_every_other_grid():
    built = chosen(tp="auto")
    choice = built.grid_choice
    assert choice.seconds <= choice.best[0][0] * (1 + NEAR)
    grid = choice.grid
    degrees = built.derived.layouts[0].degrees
    assert (degrees["tp.x"], degrees["tp.y"], degrees["tp.z"], degrees["dp"]) == (grid.x, grid.y, grid.z, grid.data)
    assert grid.x * grid.y * grid.z * grid.data == 16
    assert any("tp: auto took" in note and str(grid) in note for note in notes(built))


def test_the_number_of_grids_is_that_of_brute_force():
    """x divides the 16 heads, y the 2,048 features; z the samples of a replica."""
    sizes = (1, 2, 4, 8, 16)
    every = [one for one in product(sizes, repeat=4) if one[0] * one[1] * one[2] * one[3] == 16]
    assert chosen(tp="auto").grid_choice.grids == sum(32 // d % z == 0 for _, _, z, d in every)


def test_a_number_of_ranks_is_kept():
    built = chosen(tp=8, tp_mode="3d")
    assert built.derived.degree("tp") == 8
    assert built.derived.replicas == 2


def test_replicas_are_kept():
    assert chosen(tp="auto", dp=4).derived.replicas == 4


def test_models_that_are_no_transformers_have_no_grid():
    data = {**SCENARIO, "model": {"preset": "resnet50"}, "parallelism": {"tp": "auto"}}
    with pytest.raises(ScenarioError, match="auto chooses the grid of a transformer; resnet50 is not one"):
        BuiltScenario.model_validate(data)


def test_a_model_that_fits_nowhere_is_told():
    model = {**SCENARIO["model"], "num_layers": 400, "hidden_size": 16384, "num_attention_heads": 128}
    with pytest.raises(ScenarioError, match=r"none of the .* grids x, y, z and dp fits into memory"):
        BuiltScenario.model_validate({**SCENARIO, "model": model, "parallelism": {"tp": "auto"}})


def test_a_profiled_ring_has_the_bandwidth_of_its_port():
    cluster = uniform(8, bandwidth=10e9, latency=0.0, hosts=0)
    rate = profiled(cluster, transport("ideal", cluster))
    assert rate(1, 8) == pytest.approx(10e9, rel=1e-9)
    assert rate(1, 1) == float("inf")


def authors_bandwidth(before, ranks):
    """GB (of 2^30 bytes)/s on Perlmutter (axonn-ai/Megatron-AxoNN at 8a4ae241, examples/comm_model.py)."""
    measured = {(1, 2): 76, (1, 4): 225, (2, 2): 76}
    elsewhere = 80 if before == 1 else 40 if before == 2 else 20
    return measured.get((before, ranks), elsewhere) * 2**30


@pytest.mark.parametrize(
    ("grid", "seconds"),
    [
        ((1, 1, 4096, 1), 2.704612970352173),
        ((1, 1, 128, 32), 2.793335723876953),
        ((1, 1, 64, 64), 2.8849205017089843),
        ((1, 2, 2048, 1), 3.547702503204346),
        ((2, 4, 8, 64), 7.339849090576172),
        ((4, 2, 16, 32), 5.723544158935548),
    ],
)
def test_the_authors_own_program(grid, seconds):
    """GPT-40B of 38 layers, 8,192 sequences of 2,048 on 4,096 GPUs; its last product is one from h to 4 h.

    *grid*: as it prints it, Gc, Gr, Gd and Gdata; it recomputes, and reduces gradients in fp32.
    """
    y, x, z, d = grid
    h = 9216
    layer = [
        LayerProduct(h, 3 * h),
        LayerProduct(h, h, transposed=True),
        LayerProduct(h, 4 * h),
        LayerProduct(h, 4 * h, transposed=True),
    ]
    found = communication_seconds(
        layer * 38, 8192 * 2048, FourDimensions(x, y, z, d), authors_bandwidth, width=2, forwards=2
    )
    assert found == pytest.approx(seconds, rel=1e-12)
