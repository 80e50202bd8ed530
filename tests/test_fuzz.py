"""Some generated scenarios and damaged files with a fixed seed; `make fuzz` runs many."""

from pathlib import Path

import pytest

from tests.fuzz import files, scenarios
from tests.fuzz.values import features
from tests.samples import sample

SEED = 33

SCENARIOS, FILES = 6, 10
"""Of each part of the test; a scenario takes a quarter of a second of processor time, a file a tenth."""

SLOW = ("sweep",)
"""Readers that fit what they read, which takes seconds."""


def test_every_section_has_features() -> None:
    found = features()
    assert len(found) > 150
    assert {feature.path[0] for feature in found} >= {"model", "training", "parallelism", "network", "simulation"}


@pytest.mark.parametrize("part", [pytest.param(0, marks=pytest.mark.exhaustive), 1])
def test_generated_scenarios_agree_or_are_refused_by_the_check(part: int) -> None:
    tally = scenarios.Tally()
    for number, scenario in enumerate(scenarios.generated(SEED + part, SCENARIOS)):
        tally.add(scenarios.judged(scenario, processes=part == number == 0))
    assert not tally.findings, "\n".join(map(str, tally.findings))
    assert tally.counts["agrees"] >= SCENARIOS / 3


@pytest.mark.parametrize("reader", sample([one.name for one in files.readers() if one.name not in SLOW], 3))
def test_damaged_files_are_accepted_or_refused(reader: str, tmp_path: Path) -> None:
    for number, (one, name, content) in enumerate(files.generated(SEED, FILES, reader)):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert not files.fault(one, name, content, folder), content
