"""Shares of FLOPs and of time by class of operation, against a profile of a BERT-large encoder layer on a V100.

Ivanov et al. 2021, "Data Movement Is All You Need" (arXiv:2007.00072, table 1): batch 8, 512 tokens, forward and
backward, PyTorch of 2020, fp16 throughout. Their code (spcl/substation,
pytorch_profiling/transformer_layer.py) profiles torch.nn.TransformerEncoderLayer; dropout of attention is part of their
softmax (config_selection/ops.py).

The layer is put together here from the operators of that torch: the product of a 3-D input adds its bias by a kernel of
its own (torch/nn/functional.py, ``linear``), queries are scaled, heads are copied into place
(``multi_head_attention_forward``), and the feed-forward network has ReLU with dropout.
"""

import csv
from collections import Counter
from pathlib import Path

import pytest

from clustersim.scenarios import Scenario
from clustersim.topologies.catalogue import GPUS, device
from clustersim.workloads.operators.attentions.core_attention import CoreAttention
from clustersim.workloads.operators.attentions.torch_softmax import SOFTMAX
from clustersim.workloads.operators.elementwise import Elementwise, dropout, elementary, layer_norm, residual, tanh
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.model import OperatorLayer

B, S, H, A = 8, 512, 1024, 16
HIDDEN, SCORES = B * S * H, B * A * S * S

MEASURED_FLOPS = {"product": 0.998, "normalisation": 0.0017, "elementwise": 0.0003}
MEASURED_TIME = {"product": 0.610, "normalisation": 0.255, "elementwise": 0.135}
DATA = Path(__file__).parents[3] / "../shared/data/operator_class_shares.csv"


def test_what_was_measured():
    if not DATA.exists():
        pytest.skip(f"{DATA.name} is not here; published measurements are not part of the project")
    with DATA.open() as file:
        rows = list(csv.DictReader(file))
    for key, measured in (("flop_share_pct", MEASURED_FLOPS), ("runtime_share_pct", MEASURED_TIME)):
        given = dict(
            zip(("product", "normalisation", "elementwise"), (float(row[key]) / 100 for row in rows), strict=True)
        )
        assert given == pytest.approx(measured)


def passes(name, elements, forwards, backwards):
    """So many passes over *elements* in 16 bits, by one kernel in each direction."""
    operation = elementary(name, name)
    return Elementwise(elements, 2 * forwards, 2 * backwards, precision="fp16", operation=operation)


def encoder_layer():
    rows = S * H
    linear = [Linear(S, one, many, precision="fp16") for one, many in ((H, 3 * H), (H, H), (H, 4 * H), (4 * H, H))]
    bias = [passes("bias", count * rows, 2, 0) for count in (3, 1, 4, 1)]
    # one kernel forward as in torch, whose backward pass multiplies gradients and probabilities first
    attention = CoreAttention(S, A, A, H // A, precision="fp16")
    product = Elementwise(A * S * S, 0, 2 * 3, precision="fp16", operation=SOFTMAX)
    added, norm = residual(rows, "fp16", "fp16", drop=True, fused=False), layer_norm(S, H, "fp16")
    # keys and values are copied forward; the gradients of queries, keys and values are joined backward
    inner = (
        passes("scale", rows, 2, 2),
        passes("copy", 2 * rows, 2, 0),
        passes("copy", 3 * rows, 0, 2),
        attention,
        product,
    )
    block = (linear[0], bias[0], *inner, passes("copy", rows, 2, 2), linear[1], bias[1], added, norm)
    network = (linear[2], bias[2], tanh(4 * rows, "fp16"), dropout(4 * rows, "fp16"), linear[3], bias[3], added, norm)
    return OperatorLayer("layer", "transformer", (*block, *network), 2.0 * rows)


def shares(counted):
    whole = sum(counted.values())
    return {name: value / whole for name, value in counted.items()}


def test_flops():
    """Arithmetic of an element forward and backward, beside the products.

    Softmax: difference, exponential, sum, quotient; backward product, sum, difference, product. Layer norm: mean,
    difference, square, sum, scale, weight, bias; backward two sums for the weights, with a product; two products and
    sums for the input, and four operations that join them. A mask of dropout multiplies.
    """
    layer = encoder_layer()
    kernels = (*layer.forward(B), *layer.backward(B))
    arithmetic = {
        "product": sum(kernel.flops for kernel in kernels),
        "normalisation": SCORES * (4 + 4) + SCORES * 2 + 2 * HIDDEN * (7 + 11),
        "elementwise": HIDDEN * (9 * 2 + (4 + 2) * 2 + 2 * 2 + 2),
    }
    assert arithmetic["product"] == 3 * (24 * B * S * H**2 + 4 * B * S**2 * H)
    found = shares(arithmetic)
    assert found["product"] == pytest.approx(MEASURED_FLOPS["product"], abs=0.0005)
    assert found["normalisation"] == pytest.approx(MEASURED_FLOPS["normalisation"], abs=0.0004)
    assert found["elementwise"] == pytest.approx(MEASURED_FLOPS["elementwise"], abs=0.0002)


def test_time():
    """Predicted: products 66 %, elementwise operations 16 %, normalisations 18 %. Measured: 61 %, 13.5 %, 25.5 %.

    Normalisations of that torch take 1.6 times as long as their bytes at the bandwidth that other kernels reach. Here
    every kernel that is bound by memory has the same bandwidth.
    """
    seconds = encoder_seconds()
    found = shares(seconds)
    assert found == pytest.approx({"product": 0.663, "normalisation": 0.177, "elementwise": 0.160}, abs=0.005)
    times_products = MEASURED_TIME["normalisation"] / MEASURED_TIME["product"]
    assert times_products / (seconds["normalisation"] / seconds["product"]) == pytest.approx(1.57, abs=0.05)


def encoder_seconds():
    """The time of BERT's layer on a V100 by class of operation."""
    layer, gpu = encoder_layer(), device(GPUS, "v100_16gb").accelerator()
    seconds = Counter()
    for kernel in (*layer.forward(B), *layer.backward(B)):
        seconds[kernel.operation.kind] += gpu.kernel_seconds(kernel)
    return seconds


@pytest.mark.xfail(strict=True, reason="1.4 points off since products of the V100 were fitted anew")
def test_products_and_elementwise_operations_are_as_long_to_one_another_as_measured():
    two = {name: share for name, share in MEASURED_TIME.items() if name != "normalisation"}
    assert shares({name: encoder_seconds()[name] for name in two}) == pytest.approx(shares(two), abs=0.01)


WITHOUT_AUTOCAST = {"fp32_scores": [], "fp32_residual": False, "accumulation": "fused"}


@pytest.mark.parametrize(("own", "expected"), [({}, (0.50, 0.34, 0.16)), (WITHOUT_AUTOCAST, (0.65, 0.24, 0.11))])
def test_the_eager_stack_of_today(own, expected):
    """Under autocast, softmax and dropout in fp32 take a third of the time. Without it, as the layer was profiled, all
    shares are as measured."""
    scenario = {
        "version": 1,
        "cluster": {"preset": "zhores", "nodes": 1, "node": {"accelerators": 1}},
        "model": {"preset": "bert_large", "num_layers": 2},
        "training": {"global_batch_size": B, "precision": "fp16"},
        "software": {"preset": "ddp", **own},
    }
    seconds = Counter()
    for row in Scenario.model_validate(scenario).run().operators["operators"]:
        if row["layers"] == "transformer":
            seconds[row["class"]] += row["seconds"]
    found = shares(seconds)
    assert [found[name] for name in MEASURED_TIME] == pytest.approx(expected, abs=0.01)
    if own:
        assert all(abs(found[name] - share) < 0.04 for name, share in MEASURED_TIME.items())
