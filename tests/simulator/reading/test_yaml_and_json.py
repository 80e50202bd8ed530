"""Reading keeps values as YAML 1.2 has them, and where each of them stands."""

from pathlib import Path
from typing import Any

import pytest

from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.yaml_and_json import read, read_value


def document(tmp_path: Path, text: str) -> Document:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    return read(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("300e9", 300e9),
        ("1_000", 1000),
        ("0o17", 15),
        ("0x1F", 31),
        ("012", 12),
        ("-.5", -0.5),
        (".inf", float("inf")),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("'12'", "12"),
        ('"a\\tb"', "a\tb"),
        ("[1, {a: b}]", [1, {"a": "b"}]),
    ],
)
def test_values_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)


def test_every_key_and_value_knows_its_place(tmp_path: Path) -> None:
    made = document(tmp_path, "a:\n  b: 1\n  c:\n    - x\n    - {d: 2}\n")
    assert made.data == {"a": {"b": 1, "c": ["x", {"d": 2}]}}
    places = {path: (p.line, p.column, p.key_line, p.key_column) for path, p in made.positions.items()}
    assert places == {
        (): (1, 1, 1, 1),
        ("a",): (2, 3, 1, 1),
        ("a", "b"): (2, 6, 2, 3),
        ("a", "c"): (4, 5, 3, 3),
        ("a", "c", 0): (4, 7, 4, 7),
        ("a", "c", 1): (5, 7, 5, 7),
        ("a", "c", 1, "d"): (5, 11, 5, 8),
    }
    assert made.position(("a", "b")).source == "  b: 1"


def test_keys_are_text(tmp_path: Path) -> None:
    assert document(tmp_path, "1: a\nno: b\nnull: c\n").data == {"1": "a", "no": "b", "null": "c"}


def test_an_alias_repeats_its_value(tmp_path: Path) -> None:
    made = document(tmp_path, "a: &x {b: 1}\nc: *x\n")
    assert made.data == {"a": {"b": 1}, "c": {"b": 1}}
    assert made.position(("c", "b")).line == 1


def test_a_mark_of_byte_order_and_foreign_line_ends_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: \xc2\xb5s\r\n")
    made = read(tmp_path / "a.yaml")
    assert made.data == {"a": 1, "b": "µs"}
    assert made.position(("b",)).source == "b: µs"


def test_a_document_that_is_read_again_has_data_of_its_own(tmp_path: Path) -> None:
    first = document(tmp_path, "a: {b: [1, 2]}\n")
    first.data["a"]["b"].append(3)
    assert document(tmp_path, "a: {b: [1, 2]}\n").data == {"a": {"b": [1, 2]}}
    assert document(tmp_path, "a: {b: [1, 4]}\n").data == {"a": {"b": [1, 4]}}
