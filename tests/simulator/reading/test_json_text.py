"""JSON with its faults in one sentence each."""

import pytest

from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.reading.yaml_and_json import parse_json, shown_at


def test_data() -> None:
    assert parse_json('{"a": [1, 2.5, null, {"b": "c"}]}') == {"a": [1, 2.5, None, {"b": "c"}]}


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ('{"a": ', "x.json:1:7", "is not valid JSON"),
        ('{"a": 1, "b": 2, "a": 3}', "x.json", 'the key "a" appears twice in one object: {"a": 3, "b": 2}'),
        ("[" * 100_000, "x.json", "is not valid JSON: it is nested too deeply"),
        (f"[{'9' * 5000}]", "x.json", "is not valid here: it has a number of thousands of digits"),
    ],
)
def test_faults(text: str, place: str, message: str) -> None:
    with pytest.raises(Fault) as caught:
        parse_json(text)
    assert (shown_at("x.json", caught.value), caught.value.message) == (place, message)
