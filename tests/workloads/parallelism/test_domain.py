"""Integrated model, batch and domain parallelism against the closed forms of Gholami et al. (arXiv:1712.04432)."""

from collections import defaultdict
from math import log2

import pytest

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.simulator.analysis.metrics import model_flops
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective, Recv, Send
from clustersim.simulator.simulate import simulate

ALPHA, RATE, WIDTH, BATCH = 5e-6, 10e9, 4, 64

DENSE = {
    "kind": "convolutional", "image": [64, 1, 1],
    "layers": [{"linear": 256}, {"linear": 512}, {"linear": 128}],
}  # fmt: skip
IMAGES = {
    "kind": "convolutional", "image": [3, 64, 48],
    "layers": [{"conv": 8, "kernel_size": 7}, {"conv": 16, "kernel_size": 3},
        {"conv": 24, "kernel_size": 1}, {"linear": 16}],
}  # fmt: skip
LOGARITHMIC = {"algorithms": {"all_gather": "halving_doubling", "all_reduce": "halving_doubling"}}


def scenario(model, gpus=8, **parallelism):
    uniform = {"preset": "uniform", "gpus": gpus, "bandwidth": "10 GB/s", "latency": "5 us", "accelerator": "v100_16gb"}
    return BuiltScenario.model_validate(
        {
            "version": 1,
            "cluster": uniform,
            "model": model,
            "training": {"global_batch_size": BATCH},
            "parallelism": {"data": {"method": "ddp", "bucket": "1 B"}, **parallelism},
            "network": LOGARITHMIC,
            "software": "ideal",
        }
    )


def timeline_of(built, fidelity="alpha_beta"):
    """By default nothing shares a port, as in the paper."""
    check(built.schedule())
    return simulate(built.schedule(), built.cluster(), algorithms=LOGARITHMIC["algorithms"], fidelity=fidelity)


def seconds(built, kinds, over, **options):
    """By layer, the seconds of each op of *kinds* over the axis *over* on rank 1, in order."""
    timeline = timeline_of(built, **options)
    ops = built.schedule().program(1).ops
    found = defaultdict(list)
    op, _, _, begin, end, _ = timeline.of(1)
    for number, first, last in zip(op.tolist(), begin.tolist(), end.tolist(), strict=True):
        one = ops[number]
        if isinstance(one, kinds) and one.over == over and one.layer:
            found[one.layer].append(last - first)
    return found


def gather(ranks, nbytes):
    return ALPHA * log2(ranks) + (ranks - 1) / ranks * nbytes / RATE


@pytest.mark.parametrize(("pr", "pc"), [(2, 4), (4, 2), (8, 1)])
def test_dense_layers_on_a_grid(pr, pc):
    """Equation 8: outputs are gathered over Pr, gradients of inputs are summed over Pr, of weights over Pc."""
    sizes, built = [64, 256, 512, 128], scenario(DENSE, domain=pr, dp=pc)
    found = seconds(built, Collective, "domain")
    samples = BATCH / pc
    for number, name in enumerate(("fc1", "fc2", "fc3")):
        outputs = gather(pr, samples * sizes[number + 1] * WIDTH)
        inputs = 2 * gather(pr, samples * sizes[number] * WIDTH) if number else 0
        assert sum(found[name]) == pytest.approx(outputs + inputs, rel=1e-9)


@pytest.mark.parametrize("pc", [2, 4])
def test_gradients_of_dense_layers_are_summed_over_the_columns(pc):
    built = scenario(DENSE, domain=8 // pc, dp=pc)
    timeline = timeline_of(built)
    weights = sum(a * b + b for a, b in zip((64, 256, 512), (256, 512, 128), strict=True))
    # each of 8 / pc rows of the grid has its part of the weights, and its pc ranks send 2 (pc - 1) / pc of it
    assert timeline.axis_bytes["dp"] == pytest.approx(2 * (pc - 1) * weights * WIDTH, rel=1e-9)
    ops = [op for op in built.schedule().program(0).ops if isinstance(op, Collective) and op.over == "dp"]
    spans = timeline.of(0)
    names = built.schedule().program(0).ops
    for number, begin, end in zip(spans[0].tolist(), spans[3].tolist(), spans[4].tolist(), strict=True):
        if names[number] in ops:
            assert end - begin == pytest.approx(2 * gather(pc, names[number].nbytes), rel=1e-9)


@pytest.mark.parametrize("pc", [1, 4])
def test_halos_of_two_bands(pc):
    """Equation 7: alpha + beta B/Pc X_W X_C floor(k/2) forward, and the same of the output's gradient backward.

    The gradient of the images themselves is not needed, and a window of 1 has no halo.
    """
    built = scenario(IMAGES, gpus=2 * pc, domain=2, dp=pc)
    found = seconds(built, Send, "domain")

    def halo(channels, rows):
        # a send ends with its last byte, the receive a latency later
        return BATCH / pc * 48 * channels * rows * WIDTH / RATE

    assert found["conv1"] == pytest.approx([halo(3, 3)], rel=1e-9)
    assert found["conv2"] == pytest.approx([halo(8, 1), halo(16, 1)], rel=1e-9)
    assert "conv3" not in found
    assert seconds(built, Recv, "domain")["conv1"] == pytest.approx([ALPHA + halo(3, 3)], rel=1e-9)


def test_an_inner_band_has_two_neighbours_and_one_port():
    """The paper counts one message of a halo. Two at once share the port, so that they take their bytes twice."""
    built = scenario(IMAGES, gpus=4, domain=4, dp=1)
    each = BATCH * 48 * 3 * 3 * WIDTH / RATE
    assert seconds(built, Send, "domain", fidelity="flow")["conv1"] == pytest.approx([2 * each, 2 * each], rel=1e-9)


def test_bands_at_the_border_have_one_neighbour():
    built = scenario(IMAGES, gpus=4, domain=4, dp=1)
    peers = [
        {op.peer for op in built.schedule().program(rank).ops if isinstance(op, Send) and op.over == "domain"}
        for rank in range(4)
    ]
    assert peers == [{1}, {0, 2}, {1, 3}, {2}]


@pytest.mark.parametrize("way", ["domain", "batch"])
def test_weights_that_all_ranks_have_are_reduced_over_all(way):
    """Equations 4 and 7: 2 (P - 1) |W| over P = Pr x Pc ranks in all; the dense layer over Pc."""
    pr, pc = 2, 4
    built = scenario(IMAGES, domain=pr, dp=pc, domain_layers={"convolution": way})
    sent = simulate(built.schedule(), built.cluster()).axis_bytes["dp"]
    convolutions = 3 * 8 * 49 + 8 + 8 * 16 * 9 + 16 + 16 * 24 + 24
    dense = 24 * 64 * 48 * 16 + 16
    assert sent == pytest.approx(WIDTH * (2 * (pr * pc - 1) * convolutions + 2 * (pc - 1) * dense), rel=1e-9)


def test_convolutions_by_model_gather_channels_and_sum_gradients_of_inputs():
    """Equation 3, whose sum over gradients of inputs begins with the second layer."""
    pr = 4
    built = scenario(IMAGES, gpus=4, domain=pr, dp=1, domain_layers={"convolution": "model"})
    found = seconds(built, Collective, "domain")
    pixels = BATCH * 64 * 48 * WIDTH
    assert sum(found["conv1"]) == pytest.approx(gather(pr, 8 * pixels), rel=1e-9)
    assert sum(found["conv2"]) == pytest.approx(gather(pr, 16 * pixels) + 2 * gather(pr, 8 * pixels), rel=1e-9)


@pytest.mark.parametrize("way", ["domain", "batch"])
def test_activations_are_gathered_where_a_dense_layer_by_model_follows(way):
    pr = 4
    built = scenario(IMAGES, gpus=4, domain=pr, dp=1, domain_layers={"convolution": way})
    features = 24 * 64 * 48
    gathers = [op.nbytes for op in built.schedule().program(0).ops if isinstance(op, Collective) and op.layer == "fc1"]
    assert gathers == pytest.approx([BATCH * features * WIDTH, BATCH * 16 * WIDTH, BATCH * features * WIDTH])


@pytest.mark.parametrize("ways", [{}, {"convolution": "model"}, {"convolution": "batch"}, {"linear": "batch"}])
def test_ranks_share_the_work(ways):
    """64 rows are divided by 4 bands; every other way divides outputs or samples."""
    built = scenario(IMAGES, gpus=8, domain=4, dp=2, domain_layers=ways)
    assert model_flops(built.schedule()) == pytest.approx(built.model.flops(BATCH), rel=1e-9)


def test_one_rank_adds_nothing():
    plain, one = scenario(IMAGES, dp=8), scenario(IMAGES, dp=8, domain=1)
    assert [str(op) for op in plain.schedule().program(0).ops] == [str(op) for op in one.schedule().program(0).ops]


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        ({"preset": "gpt2"}, {"domain": 2}, "domain parallelism needs a convolutional model, and gpt2 is not one"),
        (
            IMAGES,
            {"domain_layers": {"conv1": "batch"}},
            "domain_layers: belongs to domain parallelism, but domain is 1",
        ),
        (IMAGES, {"domain": 2, "domain_layers": {"conv9": "batch"}}, "has no layer conv9"),
        (IMAGES, {"domain": 2, "domain_layers": {"linear": "domain"}}, "layer fc1 has no images to cut"),
        ({**IMAGES, "image": [3, 8, 8]}, {"domain": 4}, "have 2, fewer than the halo of a window of 7"),
        ({**DENSE, "layers": [{"linear": 3}]}, {"domain": 4}, "fc1 has 3 outputs, too few for 4 ranks"),
        (DENSE, {"domain": 2, "domain_layers": {"linear": "rows"}}, "parallelism.domain_layers.linear: must be"),
    ],
)
def test_laws(model, keys, message):
    with pytest.raises(ScenarioError, match=message):
        scenario(model, dp=1, **keys).schedule()
