"""The walks that `python -m tests.structure` prints: on a few lines of code, and on the simulator."""

import pytest

from tests.samples import sample
from tests.structure import walks
from tests.structure.walks import STAGES, WALKS, Stop, Walk, by_stage, count


@pytest.mark.parametrize(
    "walk",
    sample(WALKS, heavy=[walk for walk in WALKS if walk.axis != "dp"]),
    ids=[walk.axis for walk in WALKS],
)
def test_a_walk_passes_every_stage_and_ends_with_the_span(walk: Walk) -> None:
    stops = walk.stops()
    assert stops[0] == Stop("scenarios/scenario.py", "Scenario.run")
    assert stops[-1] == Stop("simulator/analysis/timeline.py", "Timeline.spans")
    assert set(by_stage(stops)) == set(STAGES)


class Parcel:
    """What the functions below hand on."""


def made() -> Parcel:
    return Parcel()


def seen(parcels: list[Parcel]) -> int:
    return sum(isinstance(parcel, Parcel) for parcel in parcels)


def handed_on() -> int:
    return seen([made()]) + unrelated()


def unrelated() -> int:
    return 1


def test_functions_count_that_hold_the_object_and_those_that_lead_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "PACKAGES", ("tests",))
    stops = walks.traced(handed_on, lambda value: isinstance(value, Parcel))
    # this test and `traced` themselves lead to it too
    assert [stop.function for stop in stops][2:] == ["handed_on", "made", "seen"]


def test_a_return_is_a_file_that_the_walk_comes_back_to() -> None:
    stops = [Stop(file, str(number)) for number, file in enumerate("aabacb")]
    assert count(stops) == (3, 6, 2)
