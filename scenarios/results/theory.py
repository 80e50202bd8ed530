"""The bubble fraction of a step in theory, for pipeline orders with a closed form.

All forms assume p stages of equal length, m micro-batches, messages without cost, and no recomputation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scenarios.build.built import BuiltScenario


class ClosedForm(NamedTuple):
    """The *fraction* of the step that is bubble, and its *formula*."""

    formula: str
    fraction: float


def bubble(scenario: BuiltScenario) -> ClosedForm | None:
    """Return the bubble fraction of the pipeline of *scenario*; None without a pipeline or a closed form.

    GPipe: Huang et al. 2019 (arXiv:1811.06965); 1F1B, and with v virtual stages: Narayanan et al. 2021
    (arXiv:2104.04473, section 2.2), here as a share of the whole step, not of the ideal time, (p - 1)/m; the same for
    breadth first: Lamy-Poirier 2022 (arXiv:2211.05953). ZB-H1, if F, I and W take equally long: p - 1 of their slots,
    Qi et al. 2023 (arXiv:2401.10241). ZB-H2: none, if ranks begin a step as they end the one before, without waiting.
    Naive: one stage of p works at a time. An asynchronous order in its steady state: none (arXiv:2006.09503).
    """
    parallelism, derived = scenario.specification.parallelism, scenario.derived
    p, m, v = derived.degree("pp"), derived.micro_batches, parallelism.stages_per_rank
    if scenario.model is None or p == 1 or derived.by_stage:
        return None
    form: ClosedForm | None = None
    match parallelism.order_name:
        case "naive":
            form = ClosedForm("1 - 1/p", 1 - 1 / p)
        case "gpipe" | "one_f_one_b":
            form = ClosedForm("(p - 1)/(m + p - 1)", (p - 1) / (m + p - 1))
        case "interleaved" | "looped_bfs" if m % p == 0:
            form = ClosedForm("(p - 1)/(v m + p - 1)", (p - 1) / (v * m + p - 1))
        case "zero_bubble_h1" if m >= p:
            form = ClosedForm("(p - 1)/(3 m + p - 1)", (p - 1) / (3 * m + p - 1))
        case "zero_bubble_h2" if m >= 2 * p - 1 and _steps_without_waiting(scenario):
            form = ClosedForm("0", 0.0)
        case "pipedream" | "pipedream_2bw":
            form = ClosedForm("0", 0.0)
    return form


def _steps_without_waiting(scenario: BuiltScenario) -> bool:
    """True if several steps follow one another, and none waits for the norm of all gradients."""
    training = scenario.specification.training
    return training is not None and training.steps > 1 and not scenario.specification.parallelism.synchronous_update
