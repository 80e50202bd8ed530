"""Recomputation and offloading together: against brute force over the class of plans, and against either alone."""

import random
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.workloads.memory import offload_and_recompute_compiled
from clustersim.workloads.memory.chain import Chain, Slots
from clustersim.workloads.memory.chain_execution import executed, executed_with_copies
from clustersim.workloads.memory.chain_sequence import ChainSequence, Kind, saving_all
from clustersim.workloads.memory.offload_and_recompute import KARMA, POFO, SWAPPED, Programme, combined
from clustersim.workloads.memory.optimal_checkpointing import BudgetError, optimal


def runs_again(first, last):
    """All texts that run layers *first* ... *last* forward and backward from a_(first - 1)."""
    if first == last:
        return [f"F{first}e B{first}"]
    found = [f"F{first}e {inner} B{first}" for inner in runs_again(first + 1, last)]
    for kept in range(first, last):
        head = " ".join([f"F{first}c", *(f"F{i}n" for i in range(first + 1, kept + 1))])
        found += [f"{head} {a} {b}" for a in runs_again(kept + 1, last) for b in runs_again(first, kept)]
    return found


def once(first, last):
    layers = range(first, last + 1)
    return [" ".join([*(f"F{i}e" for i in layers), *(f"B{i}" for i in reversed(layers))])]


def plans(chain, rules, first=1, window=None):
    """(forward, backward) texts of all plans of the layers from *first* on; *window*: the item on its way."""
    length = len(chain)
    if first > length:
        if window is None:
            yield "", ""
        return
    for last in range(first, length + 1):
        blocks = [(f"F{first}e", [f"B{first}"], f"{first}t")] if last == first else []
        if rules.again != "never":
            forward = " ".join([f"F{first}c", *(f"F{i}n" for i in range(first + 1, last + 1))])
            backward = runs_again(first, last) if rules.again == "nested" else once(first, last)
            blocks.append(
                (forward, backward, f"{first - 1}a" if rules.inputs and chain.activation(first - 1) else None)
            )
        for forward, backwards, item in blocks:
            for closes in (False, True) if window else (False,):
                done, back = (f" W{window}", f"P{window} ") if closes else ("", "")
                still = None if closes else window
                for copied in (False, True) if still is None and item and last < length else (False,):
                    sent = f" O{item}" if copied else ""
                    for rest, behind in plans(chain, rules, last + 1, item if copied else still):
                        for backward in backwards:
                            yield f"{forward}{done}{sent} {rest}", f"{behind} {back}{backward}"


def brute_force(chain, budget, bandwidth, rules):
    """The least seconds of all plans within *budget*; None if there is none."""
    found = []
    for forward, backward in plans(chain, rules):
        run = executed_with_copies(ChainSequence.parse(f"{forward} Loss BLoss {backward}"), chain, bandwidth)
        if run.peak <= budget:
            found.append(run.seconds)
    return min(found, default=None)


def planned(chain, budget, bandwidth, rules, known=inf):
    """Seconds of the programme, executed; None if nothing fits."""
    programme = Programme(chain, Slots(1.0, budget), bandwidth, rules, known=known)
    if programme.seconds == float("inf"):
        return None
    run = executed_with_copies(programme.sequence(), chain, bandwidth)
    assert run.peak <= budget
    assert run.seconds <= programme.seconds * (1 + 1e-12)
    return run.seconds


@st.composite
def chains(draw, longest):
    count = draw(st.integers(2, longest))

    def some(least, most, size):
        return draw(st.lists(st.integers(least, most), min_size=size, max_size=size))

    activations = some(0, 4, count + 1)
    tapes = [a + extra for a, extra in zip(activations[1:], some(0, 8, count), strict=True)]
    return Chain.of(activations, tapes, some(1, 4, count), some(1, 6, count), some(0, 2, count))


@settings(max_examples=100)
@given(chains(4), st.integers(4, 30), st.sampled_from([0.3, 1.0, 2.5, 8.0]), st.sampled_from([POFO, KARMA, SWAPPED]))
def test_the_programme_finds_what_brute_force_finds(chain, budget, bandwidth, rules):
    expected = brute_force(chain, budget, bandwidth, rules)
    found = planned(chain, budget, bandwidth, rules)
    assert (found is None) == (expected is None)
    assert found is None or found == pytest.approx(expected)


@pytest.fixture
def interpreted(monkeypatch):
    """The compiled loops as plain Python, in which a place outside of an array is an error."""
    for name, value in vars(offload_and_recompute_compiled).items():
        if hasattr(value, "py_func"):
            monkeypatch.setattr(offload_and_recompute_compiled, name, value.py_func)


@pytest.mark.parametrize("seed", range(12))
def test_chains_of_four_layers_with_slow_copies_are_as_brute_force_finds(interpreted, seed):
    """So slow that several blocks run while one is copied, in so little memory that it counts when a copy ends."""
    draws = random.Random(seed)
    for rules in (KARMA, SWAPPED) * 5:
        activations, more = draws.choices(range(4), k=5), draws.choices(range(6), k=4)
        tapes = [activation + extra for activation, extra in zip(activations[1:], more, strict=True)]
        forward, backward, final = (draws.choices(range(*span), k=4) for span in ((1, 4), (1, 5), (0, 2)))
        chain = Chain.of(activations, tapes, forward, backward, final)
        budget, bandwidth = draws.randint(4, 16), draws.choice([0.5, 1.0, 2.0])
        expected = brute_force(chain, budget, bandwidth, rules)
        # also if a plan that takes as long is known, so that no slower one is looked for
        for known in (inf, expected or inf):
            assert planned(chain, budget, bandwidth, rules, known) == (expected and pytest.approx(expected))


def test_what_blocks_keep_while_one_is_copied_leaves_less_for_the_rest(interpreted):
    chain = Chain.of([1, 2, 1, 3, 0, 3], [6, 5, 7, 1, 7], [2, 1, 3, 2, 3], [1, 3, 1, 1, 1], [0, 1, 0, 0, 1])
    assert planned(chain, 18, 1.0, KARMA) == pytest.approx(brute_force(chain, 18, 1.0, KARMA))


CHAINS = {
    5: Chain.of([0, 3, 1, 2, 1, 1], [4, 6, 3, 5, 2], [1, 2, 1, 3, 1], [2, 3, 2, 5, 1], [1, 1, 0, 1, 0]),
    6: Chain.of([2, 2, 2, 2, 2, 2, 1], [6, 6, 6, 6, 6, 2], 1.0, 2.0),
}


@pytest.mark.parametrize("rules", [KARMA, SWAPPED], ids=["KARMA", "swapped"])
@pytest.mark.parametrize("length", [5, pytest.param(6, marks=pytest.mark.exhaustive)])
def test_longer_chains_are_as_brute_force_finds(length, rules):
    for budget in (12, 16):
        expected = brute_force(CHAINS[length], budget, 3.0, rules)
        assert planned(CHAINS[length], budget, 3.0, rules) == (expected and pytest.approx(expected))


@pytest.mark.exhaustive
def test_six_layers_run_again_and_copied_are_as_brute_force_finds():
    expected = brute_force(CHAINS[6], 14, 2.0, POFO)
    assert planned(CHAINS[6], 14, 2.0, POFO) == pytest.approx(expected)


def test_the_best_plan_of_six_layers_runs_some_again_and_copies():
    plan = combined(CHAINS[6], 14, 2.0)
    assert plan.forwards() > 6
    assert any(one.kind is Kind.OFFLOAD for one in plan)


@pytest.mark.exhaustive
@settings(max_examples=25)
@given(chains(9), st.integers(6, 60), st.sampled_from([0.1, 1.0, 3.0, 20.0]), st.integers(1, 3))
def test_together_is_never_worse_than_either_alone(chain, budget, bandwidth, in_flight):
    def seconds(make):
        try:
            sequence = make()
        except BudgetError:
            return float("inf")
        run = executed_with_copies(sequence, chain, bandwidth)
        assert (in_flight - 1) * run.held + run.peak <= budget * (1 + 1e-9)
        return run.seconds

    both = seconds(lambda: combined(chain, budget, bandwidth, in_flight))
    assert both <= seconds(lambda: optimal(chain, budget, in_flight))
    assert both <= seconds(lambda: combined(chain, budget, bandwidth, in_flight, SWAPPED)) * (1 + 1e-12)
    assert both <= seconds(lambda: combined(chain, budget, bandwidth, in_flight, KARMA)) * (1 + 1e-12)


@given(chains(8), st.sampled_from([0.5, 2.0]))
def test_half_the_bandwidth_is_never_faster(chain, bandwidth):
    budget = max(1.0, executed_with_copies(saving_all(len(chain)), chain, 1.0).peak * 0.6)
    try:
        slow = executed_with_copies(combined(chain, budget, bandwidth / 2), chain, bandwidth / 2).seconds
    except BudgetError:
        return
    fast = executed_with_copies(combined(chain, budget, bandwidth), chain, bandwidth).seconds
    assert fast <= slow * (1 + 1e-12)


@given(chains(8), st.integers(4, 40))
def test_without_copies_both_executions_agree(chain, budget):
    try:
        sequence = optimal(chain, budget)
    except BudgetError:
        return
    one, two = executed(sequence, chain), executed_with_copies(sequence, chain, 1.0)
    assert (two.seconds, two.peak, two.waited, two.copied) == pytest.approx((one.seconds, one.peak, 0.0, 0.0))


def test_copies_and_computation_run_side_by_side():
    """F1 0-1, copy 1-4 beside F2 1-2; F3 waits, 4-5; B3 5-7; the copy back 7-10 beside B2 7-9; B1 10-12."""
    chain = Chain.of([0, 1, 1, 1], [3, 3, 3], 1.0, 2.0)
    text = "F1e O1t F2e W1t F3e Loss BLoss B3 P1t B2 B1"
    run = executed_with_copies(ChainSequence.parse(text), chain, 2.0 / 3.0)
    assert (run.seconds, run.waited, run.copied, run.host_peak) == pytest.approx((12.0, 3.0, 2.0, 2.0))
    # the tape of layer 1 but a_1 is away while layer 3 runs
    assert run.peak == 7.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("F1e O1t W1t F2e Loss BLoss B2 B1", "B1 reads the tape of layer 1"),
        ("F1e F2e P1t", "P1t reads .* on the host"),
        ("F1e O1t F2e W1t Loss BLoss B2 P1t", "layers without a backward pass"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(text, reason):
    with pytest.raises(ScheduleError, match=reason):
        executed_with_copies(ChainSequence.parse(text), Chain.of([0, 1, 1], [2, 2]), 1.0)


def test_a_budget_that_nothing_meets_says_what_does():
    chain = Chain.of([1] * 7, [4] * 6)
    with pytest.raises(BudgetError, match="2 B are too little: the activations need at least"):
        combined(chain, 2.0, 1.0)


@pytest.mark.parametrize(
    ("activations", "tapes"), [([9, 6, 3], [17, 8]), ([8, 2, 7], [10, 17]), ([9, 7, 5], [19, 16]), ([7, 7, 5], [14, 8])]
)
def test_the_least_budget_is_that_of_the_largest_backward_pass_within_a_hundredth(activations, tapes):
    """A backward pass holds its tape and its layer's input, which the batch is not; all else can be on the host."""
    least = max(tapes[0], activations[1] + tapes[1])
    with pytest.raises(BudgetError) as error:
        combined(Chain.of(activations, tapes), 0.5, 1.0)
    assert least <= error.value.least <= 1.01 * least
