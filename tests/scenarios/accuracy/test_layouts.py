"""Order and regret of predicted layouts, by hand; the grids themselves are printed by `python -m tests.benchmarks`."""

import pytest

from tests.benchmarks.layouts import GRIDS, Run, kendall, regret


def runs(*times, fits=()):
    return [
        Run("job", measured, None, predicted, 0.0, fits[number] if fits else True, False)
        for number, (measured, predicted) in enumerate(times)
    ]


@pytest.mark.parametrize(
    ("times", "tau"),
    [
        ([(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)], 1.0),
        ([(1.0, 30.0), (2.0, 20.0), (3.0, 10.0)], -1.0),
        ([(1.0, 20.0), (2.0, 10.0), (3.0, 30.0)], 1 / 3),
        ([(1.0, 10.0), (1.0, 20.0)], 1.0),
    ],
)
def test_tau_counts_pairs_in_the_same_order(times, tau):
    assert kendall(runs(*times)) == pytest.approx(tau)


def test_regret_is_that_of_the_plan_which_would_be_taken():
    several = [(1.0, 5.0), (1.5, 4.0), (2.0, 3.0)]
    assert regret(runs(*several)) == pytest.approx(1.0)
    assert regret(runs(*several, fits=(True, True, False))) == pytest.approx(0.5)


def test_every_grid_names_a_published_scenario():
    assert len({grid.scenario for grid in GRIDS}) == len(GRIDS)
