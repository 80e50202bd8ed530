"""Optimal checkpointing against the shortest path over all states of memory, published numbers, and the lecture."""

import csv
from heapq import heappop, heappush
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.workloads.memory.chain import Chain, ChainLayer, Segments, Slots
from clustersim.workloads.memory.chain_execution import executed
from clustersim.workloads.memory.optimal_checkpointing import (
    BudgetError,
    least_budget,
    least_together,
    optimal,
    optimal_together,
    peak_in_flight,
)

DATA = Path(__file__).parents[3] / "../shared/data"

LECTURE = Chain.of([8, 8, 7, 7, 6, 3, 1], [8, 8, 14, 8, 3, 1])


@st.composite
def chains(draw, most=8):
    """Chains of small whole numbers, so that no size is rounded."""
    numbers = st.integers(0, 6)
    layers = []
    for number in range(draw(st.integers(1, most))):
        activation = draw(st.integers(1, 5))
        layers.append(
            ChainLayer(
                str(number),
                forward=draw(st.integers(1, 9)),
                backward=draw(st.integers(1, 9)),
                activation=activation,
                tape=activation + draw(st.integers(0, 9)),
                gradient=draw(st.sampled_from([0, activation])),
                forward_extra=draw(numbers),
                backward_extra=draw(numbers),
            )
        )
    return Chain(tuple(layers), input_bytes=draw(st.integers(0, 3)))


def fastest(chain, budget, in_flight):
    """The least seconds of all persistent sequences: the shortest path over what may be stored, for each held h.

    Of one micro-batch in flight no h lowers the limit of the peak: the largest allows all that a smaller one allows.
    """
    most, best = int(budget / in_flight), inf
    for held in range(most + 1) if in_flight > 1 else [most]:
        best = min(best, shortest(chain, budget - (in_flight - 1) * held, held, best))
    return best


def shortest(chain, limit, held, below):
    """Dijkstra's shortest path; infinite if it is not *below* these seconds.

    Every sequence saves each tape once and reads it once: a path is as long as its forward passes that save none.
    *limit*: of the peak; *held*: of what is stored at the turn. A state is (activations, tapes, the activation that
    was made last and not read, the number of the gradient).
    """
    start = (frozenset([0]), frozenset(), -1, -1)
    queue, done, count = [(chain.seconds, 0, start)], set(), 0
    while queue:
        seconds, _, state = heappop(queue)
        if state in done:
            continue
        if state[3] == 0:
            return seconds
        done.add(state)
        for cost, peak, after in steps(chain, held, *state):
            if peak <= limit and seconds + cost < below and after not in done:
                count -= 1  # of equal ones the newest first: it is the nearest to the end
                heappush(queue, (seconds + cost, count, after))
    return inf


def size(chain, activations, tapes, gradient):
    stored = sum([chain.activation(number) for number in activations])
    stored += sum([chain.layers[number - 1].tape for number in tapes])
    return stored + (chain.gradient(gradient) if gradient > 0 else 0)


def steps(chain, held, activations, tapes, fresh, gradient):
    """(seconds that no other sequence need take, peak, state) after each operation that can run."""
    length, now, stored = len(chain), size(chain, activations, tapes, gradient), activations | tapes
    for read in stored:
        number = read + 1
        if number > (gradient if gradient >= 0 else length) or number in tapes:
            continue
        layer = chain.layers[read]
        if number not in activations:
            made, peak = activations | {number}, now + layer.activation + layer.forward_extra
            yield layer.forward, peak, (made, tapes, number, gradient)
            if fresh == read:  # persistent: only what nothing else has read may be freed
                yield layer.forward, peak, (made - {read}, tapes, number, gradient)
        peak = now + layer.tape + layer.forward_extra
        yield 0, peak, (activations, tapes | {number}, -1, gradient)
    if gradient < 0 and length in stored:
        kept = activations - {length}
        if size(chain, kept, tapes, -1) <= held:
            yield 0, now + chain.gradient(length), (kept, tapes, -1, length)
    if gradient > 0 and gradient in tapes and gradient - 1 in stored:
        layer = chain.layers[gradient - 1]
        peak = now + chain.gradient(gradient - 1) + layer.backward_extra
        kept = frozenset(number for number in activations if number < gradient - 1)
        yield 0, peak, (kept, tapes - {gradient}, -1, gradient - 1)


@given(chains(), st.integers(0, 40), st.sampled_from([1, 1, 1, 2, 3]))
@settings(max_examples=30, deadline=None)
def test_the_programme_equals_the_shortest_path_over_all_persistent_sequences(chain, more, in_flight):
    least = least_budget(chain, in_flight)
    budget = least + more
    run = executed(optimal(chain, budget, in_flight), chain)
    assert peak_in_flight([run], in_flight) <= budget
    assert run.seconds == pytest.approx(fastest(chain, budget, in_flight))


@given(chains(5), st.sampled_from([1, 2, 3]))
@settings(max_examples=40, deadline=None)
def test_below_the_least_budget_no_persistent_sequence_exists(chain, in_flight):
    least = least_budget(chain, in_flight)
    assert fastest(chain, least - 1, in_flight) == inf
    with pytest.raises(BudgetError) as caught:
        optimal(chain, least - 1, in_flight)
    assert caught.value.least == least
    optimal(chain, caught.value.least, in_flight)


def revolve():
    path = DATA / "revolve_optimal.csv"
    if not path.exists():
        pytest.skip(f"{path.name} is not here; published measurements are not part of the project")
    with path.open() as file:
        rows = [list(row.values()) for row in csv.DictReader(file)]
    return [(int(row[0]), int(row[1]), int(row[4])) for row in rows]


def test_equal_layers_with_room_for_one_tape_give_griewank_and_walthers_numbers():
    """Algorithm 799: forward evaluations with s checkpoints, the input among them; tapes of 1000 activations."""
    rows = [row for row in revolve() if row[0] <= 32 or row[:2] == (50, 5)]
    assert len(rows) > 40
    for length, checkpoints, forwards in rows:
        chain = Chain.of([1] * (length + 1), [1000] * length)
        assert optimal(chain, 1000 + checkpoints).forwards() == forwards


def test_with_room_for_more_tapes_fewer_forwards_are_needed():
    chain = Chain.of([1] * 11, [2] * 10)
    assert optimal(chain, 2 + 3).forwards() < 25


def test_the_lectures_sequence_is_that_of_its_chain():
    sequence = optimal(LECTURE, 21)
    assert str(sequence) == "F1c F2n F3n F4e F5e F6e Loss BLoss B6 B5 B4 F1c F2n F3e B3 F1e F2e B2 B1"
    assert executed(sequence, LECTURE).peak == 21


def test_of_equal_layers_the_lectures_sequence_is_not_optimal():
    chain = Chain.of([1] * 7, [2] * 6)
    budget = executed(optimal(chain, 100), chain).peak - 5
    assert optimal(chain, budget).forwards() < 11


@given(chains(7), st.integers(0, 60))
@settings(max_examples=40, deadline=None)
def test_a_larger_budget_is_never_slower(chain, more):
    least = least_budget(chain)
    runs = [executed(optimal(chain, budget), chain) for budget in (least, least + more, least + more + 7)]
    assert runs[0].seconds >= runs[1].seconds >= runs[2].seconds >= chain.seconds


@given(st.lists(chains(4), min_size=2, max_size=3), st.integers(1, 4), st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_the_stages_of_a_rank_keep_to_the_budget_together(several, in_flight, more):
    budget = least_together(several, in_flight)[0] + more
    runs = [
        executed(sequence, chain)
        for sequence, chain in zip(optimal_together(several, budget, in_flight), several, strict=True)
    ]
    assert peak_in_flight(runs, in_flight) <= budget


@given(
    st.lists(st.tuples(st.floats(0.1, 9), st.floats(0, 9), st.floats(0.1, 9)), min_size=1, max_size=12),
    st.floats(0, 1),
    st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_rounding_to_slots_never_exceeds_the_budget(rows, share, in_flight):
    layers = tuple(ChainLayer(str(i), f, 2 * f, a, a + more) for i, (a, more, f) in enumerate(rows))
    chain = Chain(layers, input_bytes=1.0)
    least, most = least_budget(chain, in_flight), in_flight * sum(layer.tape for layer in layers) + in_flight
    budget = least + share * (most - least)
    run = executed(optimal(chain, budget, in_flight), chain)
    assert peak_in_flight([run], in_flight) <= budget * (1 + 1e-9)


def test_layers_that_run_on_hold_the_activation_before_and_the_one_they_make():
    """By hand: a_0 ... a_4 = 9, 5, 1, 7, 2, where the input of the first layer counts with what is stored."""
    segments = Segments(Chain.of([9, 5, 1, 7, 2], [8, 8, 8, 8]), Slots(1.0, 40))
    assert segments.peaks_advancing(1, 4, 0.0) == [5, 5 + 1, 1 + 7, 7 + 2]
    assert segments.peaks_advancing(2, 4, 3.0) == [1 + 3, 1 + 7 + 3, 7 + 2 + 3]
