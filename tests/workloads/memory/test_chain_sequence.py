"""Sequences read and print in the lecture's notation, and run by the paper's rules of memory."""

import pytest

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.workloads.memory.chain import Chain
from clustersim.workloads.memory.chain_execution import Execution, executed
from clustersim.workloads.memory.chain_sequence import ChainOperation, ChainSequence, Kind

TWO = Chain.of([2, 3, 1], [10, 20], forward=[1, 2], backward=[4, 8])


@pytest.mark.parametrize("text", ["F1c F2n Loss BLoss F1e F2e B2 B1", "F1e O1t F2e Loss BLoss B2 P1t B1"])
def test_what_is_printed_is_read(text):
    assert str(ChainSequence.parse(text)) == text


@pytest.mark.parametrize("text", ["F1", "F1e G2", "B", "F1x"])
def test_other_words_are_refused(text):
    with pytest.raises(ScheduleError, match="is no operation"):
        ChainSequence.parse(text)


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("F1e F2e Loss BLoss B2 B1", Execution(15, 30, 30)),
        # a_1 and the tape of 2; then the tape of 1
        ("F1c F2e Loss BLoss B2 F1e B1", Execution(16, 23, 23)),
        # at the turn a_2 leaves, and nothing is stored
        ("F1c F2n Loss BLoss F1c F2e B2 F1e B1", Execution(19, 23, 0)),
    ],
)
def test_duration_and_peak_are_the_sums_by_hand(text, run):
    assert executed(ChainSequence.parse(text), TWO) == run


def test_the_input_gradients_and_extra_bytes_count_if_they_are_given():
    chain = Chain.of([2, 3, 1], [10, 20], gradients=[3, 1])
    chain = Chain(chain.layers, input_bytes=2, input_gradient=2)
    # while layer 2 runs backward: a_0, both tapes, and the gradients of a_2 and a_1
    assert executed(ChainSequence.parse("F1e F2e Loss BLoss B2 B1"), chain).peak == 2 + 30 + 1 + 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("F2e", "F2e reads a_1"),
        ("F1n F2n Loss BLoss F1e", "F1e reads a_0"),
        ("F1c F2e B2", "the gradient of a_2"),
        ("F1c F2n Loss BLoss B2", "the tape of layer 2"),
        ("F1e F2e Loss BLoss B2", "backward pass of layer 1 is missing"),
        ("F1e F1e", "stored already"),
    ],
)
def test_what_cannot_run_is_refused_with_the_operation(text, message):
    with pytest.raises(ScheduleError, match=message):
        executed(ChainSequence.parse(text), TWO)


def test_a_sequence_turns_once():
    assert ChainSequence.parse("F1c F2e Loss BLoss B2 F1e B1").turn == 2
    with pytest.raises(ScheduleError, match="not 0 times"):
        _ = ChainSequence((ChainOperation(Kind.SAVE, 1),)).turn
