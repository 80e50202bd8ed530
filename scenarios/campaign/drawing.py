"""The chart of a simulated campaign."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from clustersim.scenarios.campaign.campaign import Sample, Simulated
from clustersim.scenarios.campaign.report import CAUSES, summary
from clustersim.simulator.charts.campaign import DAY, Course, IntervalCosts, draw_campaign

POINTS = 200
"""Points of the curve of costs."""

WIDER = 2.0
"""How far the curve goes beyond the intervals that are marked, as a factor."""

SHOWN = (5, 50, 95)
"""Percentiles of the time that are drawn."""


def draw(campaign: Simulated, path: Path) -> None:
    """Draw *campaign* to *path*, whose suffix gives the format."""
    job, numbers, scenario = campaign.job, summary(campaign), campaign.scenario
    whole = sum(sample.seconds for sample in campaign.samples)
    lost = {CAUSES[cause]: sum(one.lost[cause] for one in campaign.samples) / whole for cause in numbers["lost_s"]}
    model, shown = scenario.model, _shown(campaign)
    course = Course(
        {name: [(time, job.tokens(steps)) for time, steps in one.progress] for name, one in shown.items()},
        job.tokens(job.steps),
        "tokens" if model is not None and model.tokens_per_sample else "samples",
        job.productive,
        lost,
        _intervals(campaign),
        # as the text has them; the curve is of the sample that is nearest
        {name: days * DAY for name, days in numbers["days_percentiles"].items() if name in shown},
    )
    title = (
        f"{scenario.name} on {scenario.derived.ranks:,} GPUs of {scenario.cluster().name}, "
        f"{numbers['days']:.4g} days, goodput {numbers['goodput']:.1%}"
    )
    draw_campaign(course, path, title=title)


def _shown(campaign: Simulated) -> dict[str, Sample]:
    """Return the samples nearest to percentiles of the time; the one sample if there is no other."""
    ordered = sorted(campaign.samples, key=lambda sample: sample.seconds)
    if len(ordered) < len(SHOWN):
        return {"sample": ordered[0]}
    return {f"p{share}": ordered[round(share / 100 * (len(ordered) - 1))] for share in SHOWN}


def _intervals(campaign: Simulated) -> IntervalCosts | None:
    """Return the costs of intervals; those of simulations have everything that the formula leaves out."""
    if not campaign.estimates or not campaign.tried:
        return None
    tried = [(tau, [t / campaign.job.productive for t in times]) for tau, times in campaign.tried]
    marked = [tau for tau, _ in tried] + [tau for tau, _ in campaign.estimates.values()]
    taus = np.geomspace(min(marked) / WIDER, max(marked) * WIDER, POINTS)
    curve = [(float(tau), campaign.expected(float(tau))) for tau in taus]
    highest = 1.2 * max(cost for _, costs in tried for cost in costs)
    return IntervalCosts(
        [point for point in curve if point[1] < highest],
        campaign.estimates,
        [(tau, fmean(costs), stdev(costs) / len(costs) ** 0.5) for tau, costs in tried],
    )
