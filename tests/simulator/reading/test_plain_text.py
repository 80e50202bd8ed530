"""Names and texts that are safe on a terminal and in a file system."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from clustersim.simulator.reading.plain_text import joined, name_fault, printable, text_fault


@given(some.text(some.characters(), max_size=30))
def test_a_name_without_fault_names_a_file(name: str) -> None:
    if not name_fault(name):
        assert Path("folder", f"timeline_{name}.png").parent == Path("folder")
        assert "\0" not in name
        assert len(os.fsencode(f"timeline_{name}.png")) < 255
        assert name.isprintable() or not text_fault(name)


@given(some.text(some.characters(), max_size=30))
def test_a_printed_text_has_no_control_characters(text: str) -> None:
    assert not text_fault(printable(text))
    if not text_fault(text):
        assert printable(text) == text


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a/b", "a\\b", "a\nb", "\x1b[31m", "\x85", "\ud800", "x" * 181])
def test_a_name_that_is_none(name: str) -> None:
    assert name_fault(name)


def test_pairs_of_surrogates_are_one_character() -> None:
    assert joined("\ud83d\ude00!") == "\U0001f600!"
    assert joined("\ud83d!") == "\ud83d!"
