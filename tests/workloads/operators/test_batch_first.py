"""Exchanges of shards of the sequence where the samples are the first dimension: copies, and products in pieces."""

from dataclasses import replace

import pytest

from clustersim.workloads.operators.linear import Linear, SharedInput, SummedOutput
from clustersim.workloads.operators.sharded import Cut, column_parallel, row_parallel

RANKS, ROWS, INPUTS, OUTPUTS = 4, 64, 32, 16
UP = Linear(ROWS, INPUTS, OUTPUTS, bias=False, precision="bf16")
DOWN = Linear(ROWS, OUTPUTS, INPUTS, bias=False, precision="bf16")
VECTOR = ROWS * INPUTS * 2
"""Bytes of what all ranks together gather or scatter for a sample."""

SEQUENCE_FIRST = Cut("tp", RANKS, sequence=True)
COPIED = replace(SEQUENCE_FIRST, batch_first=True)
IN_PIECES = replace(COPIED, pieces=RANKS)


def moved(operator, phase, samples):
    """Bytes of the kernels that are no products, in order, by segment."""
    segments = operator.segments(phase, samples)
    return [[kernel.nbytes for kernel in one.kernels if not kernel.flops] for one in segments]


def flops(operator, phase, samples):
    return [sum(kernel.flops for kernel in one.kernels) for one in operator.segments(phase, samples)]


@pytest.mark.parametrize(("made", "phases"), [(column_parallel(UP, COPIED), "FI"), (row_parallel(DOWN, COPIED), "FI")])
def test_each_exchange_of_several_samples_copies_its_vector(made, phases):
    for phase in phases:
        assert moved(made, phase, 3) == [[2 * 3 * VECTOR]]
        assert moved(made, phase, 1) == [[]]


def test_a_copy_follows_its_gather_and_stands_before_its_scatter():
    (forward,) = column_parallel(UP, COPIED).segments("F", 2)
    (backward,) = column_parallel(UP, COPIED).segments("I", 2)
    assert forward.before and not forward.kernels[0].flops and forward.kernels[1].flops
    assert backward.after and backward.kernels[0].flops and not backward.kernels[1].flops


def test_nothing_is_copied_where_the_sequence_comes_first():
    assert moved(column_parallel(UP, SEQUENCE_FIRST), "F", 3) == [[]]


@pytest.mark.parametrize("samples", [1, 2])
def test_a_product_after_a_gather_runs_in_pieces_beside_it_and_one_behind(samples):
    made, whole = column_parallel(UP, IN_PIECES), column_parallel(UP, SEQUENCE_FIRST)
    total = sum(flops(whole, "F", samples))
    assert flops(made, "F", samples) == [0.0, total * 3 / 4, total / 4]
    assert moved(made, "F", samples) == [[2 * samples * VECTOR / RANKS], [], []]
    assert [bool(one.before) for one in made.segments("F", samples)] == [False, True, False]


@pytest.mark.parametrize("samples", [1, 2])
def test_a_product_before_a_scatter_runs_one_piece_ahead_and_sums_partial_results(samples):
    made, whole = row_parallel(DOWN, IN_PIECES), row_parallel(DOWN, SEQUENCE_FIRST)
    total = sum(flops(whole, "F", samples))
    assert flops(made, "F", samples) == [total / 4, total * 3 / 4, 0.0]
    assert moved(made, "F", samples) == [[], [], [samples * VECTOR * (1 + 1 / RANKS)]]
    assert [bool(one.after) for one in made.segments("F", samples)] == [False, True, False]


def test_each_piece_is_a_launch():
    kernels = [kernel for one in column_parallel(UP, IN_PIECES).segments("F", 1) for kernel in one.kernels]
    assert sum(kernel.launches for kernel in kernels if kernel.flops) == RANKS
    assert sum(kernel.shape[1] for kernel in kernels if kernel.flops) == ROWS


def test_a_sum_of_products_is_not_scattered_in_pieces():
    shared, summed = SharedInput((UP, UP)), SummedOutput((DOWN, DOWN))
    for made, phase in ((column_parallel(shared, IN_PIECES), "I"), (row_parallel(summed, IN_PIECES), "F")):
        (segment,) = made.segments(phase, 2)
        assert not segment.after[0].divisible
        assert moved(made, phase, 2)[0][-1] == 2 * 2 * VECTOR
    assert len(column_parallel(shared, IN_PIECES).segments("F", 2)) == 3
    assert column_parallel(shared, SEQUENCE_FIRST).segments("I", 2)[0].after[0].divisible


def test_kernels_are_those_of_the_segments():
    made = column_parallel(UP, IN_PIECES)
    assert made.forward(2) == tuple(kernel for one in made.segments("F", 2) for kernel in one.kernels)
    assert made.backward_input(2) == tuple(kernel for one in made.segments("I", 2) for kernel in one.kernels)
