"""AxoNN's communication model: seconds that a training step communicates on a grid of ranks.

Singh et al. 2025 (arXiv:2502.08145, section V-B, equations 1 to 7). Collectives are rings without latency, nothing
overlaps, and computation is not looked at: it is the same on all grids. In the paper's letters, a product of m rows, k
inputs and n outputs has its outputs cut over x and its inputs over y, or over y and x every other time.

As its authors programmed it for Perlmutter (axonn-ai/Megatron-AxoNN at 8a4ae241, examples/comm_model.py): gradients are
reduced over the replicas in fp32, and what is recomputed sums its outputs again. They take the second product of the
feed-forward network as one from h to 4 h; here it is one from 4 h to h. They leave out the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from workloads.shape import Shape

Bandwidth = Callable[[int, int], float]
"""(ranks of the sides before a side, ranks of the side) -> bytes/s of a ring over the side, while all rings run."""


@dataclass(frozen=True, slots=True)
class FourDimensions:
    """Ranks along x, y and z, and *data* replicas of such a grid; y varies fastest with the rank, then x, then z."""

    x: int
    y: int
    z: int
    data: int

    def __str__(self) -> str:
        return f"x {self.x} y {self.y} z {self.z} dp {self.data}"


@dataclass(frozen=True, slots=True)
class Product:
    """A product of *inputs* and *outputs*; *transposed*: x and y have changed places."""

    inputs: int
    outputs: int
    transposed: bool = False


def products(shape: Shape) -> Iterator[Product]:
    """The products of a transformer of that *shape*, which is not cut: four for each layer, and the logits."""
    queries, keys = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    hidden, feed_forward = shape.hidden_size, shape.ffn_hidden_size
    for _ in range(shape.num_layers):
        yield Product(hidden, queries + 2 * keys)
        yield Product(queries, hidden, transposed=True)
        yield Product(hidden, feed_forward * (2 if shape.gated else 1))
        yield Product(feed_forward, hidden, transposed=True)
    yield Product(hidden, shape.vocabulary)


def communication_seconds(
    made: Sequence[Product],
    rows: float,
    grid: FourDimensions,
    bandwidth: Bandwidth,
    *,
    width: int,
    gradient_width: int = 4,
    micro_batches: int = 1,
    forwards: int = 1,
) -> float:
    """Seconds of all collectives of a step over *rows* tokens of all replicas, elements of *width* bytes.

    *gradient_width*: bytes of a gradient that replicas reduce.
    *micro_batches* of a replica: each gathers weights and scatters their gradients. *forwards*: 2 if the forward pass
    is recomputed; its sums are then repeated.
    """
    x, y, z, d = grid.x, grid.y, grid.z, grid.data
    rate_y, rate_x = bandwidth(1, y), bandwidth(y, x)
    rate_z, rate_d = bandwidth(x * y, z), bandwidth(x * y * z, d)
    total = 0.0
    for product in made:
        k, n = product.inputs, product.outputs
        block, m = k * n / (x * y), rows / (z * d)
        columns, inner = (y, x) if product.transposed else (x, y)
        rate_columns, rate_inner = (rate_y, rate_x) if product.transposed else (rate_x, rate_y)
        # gathered before the forward and the backward pass, scattered after it
        weights = 3 * micro_batches * (z - 1) / z * block / rate_z
        outputs = 2 * forwards * (inner - 1) / inner * m * n / columns / rate_inner
        inputs = 2 * (columns - 1) / columns * m * k / inner / rate_columns
        replicas = 2 * (d - 1) / d * block / z / rate_d
        total += width * (weights + outputs + inputs) + gradient_width * replicas
    return total
