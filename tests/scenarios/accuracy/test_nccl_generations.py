"""What generations of GPUs have in common, by which the fit of NCCL knows latencies that nobody measured."""

from __future__ import annotations

import pytest

from clustersim.scenarios.accuracy.nccl_generations import CLOCKS, LATENCIES, PARAMETERS, couplings
from clustersim.scenarios.accuracy.robust_fit import FitRow, cross_validated, least_squares

COUPLED = [one for one in PARAMETERS if one.name.partition("_")[2] in LATENCIES]


def in_proportion(level: float = 1e4) -> dict[str, float]:
    """Latencies that are products of a factor of the generation, as one over its clock, and one of the quantity."""
    return {
        f"{generation}_{quantity}": level * (1 + place) / clock
        for generation, clock in CLOCKS.items()
        for place, quantity in enumerate(LATENCIES)
    }


def test_products_of_two_factors_satisfy_all_couplings() -> None:
    expected = [1.0] * (4 * len(LATENCIES) + 3)
    assert [row.at(in_proportion()) for row in couplings()] == pytest.approx(expected)


def test_one_measured_latency_gives_the_others_in_proportion() -> None:
    """All of Ampere and of Blackwell is known, and of Hopper one latency, twice as long as its clock tells: the others
    are longer, too.
    """
    fitted = {one.name for one in COUPLED}
    truth = {name: value for name, value in in_proportion(3e3).items() if name in fitted}

    def known(name: str, factor: float) -> FitRow:
        return FitRow(name, factor * truth[name], lambda values: values[name], {"data": "a"}, frozenset({name}), 0.01)

    rows = [known(name, 1.0) for name in truth if not name.startswith("hopper")] + [known("hopper_ll_start", 2.0)]
    fit = least_squares(COUPLED, [*rows, *couplings()], truth)
    assert fit.found["hopper_ll_start"] == pytest.approx(2 * truth["hopper_ll_start"], rel=0.05)
    for quantity in LATENCIES[1:]:
        assert 1.1 < fit.found[f"hopper_{quantity}"] / truth[f"hopper_{quantity}"] < 2.0
    assert len(fit.measured) == len(fit.errors()) == len(cross_validated(fit).errors) == len(rows)
