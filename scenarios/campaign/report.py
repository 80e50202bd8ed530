"""The report of a simulated campaign, its numbers as `campaign --json` prints them, and its chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from clustersim.scenarios.campaign import build
from clustersim.scenarios.campaign import job as closed_forms
from clustersim.scenarios.campaign.build import section
from clustersim.scenarios.campaign.campaign import FEW, Sample, Simulated
from clustersim.scenarios.campaign.job import LOST
from clustersim.scenarios.results.titles import batch, heading
from clustersim.scenarios.specification.cost import account
from clustersim.simulator.analysis.metrics import TAIL_FROM, percentiles
from clustersim.simulator.reading.plain_text import figure, indented, table
from clustersim.simulator.reading.units import SECONDS_PER_DAY

if TYPE_CHECKING:
    from clustersim.simulator.charts.campaign import IntervalCosts
from clustersim.simulator.reading.units import show, show_long


def summary(campaign: Simulated) -> dict[str, Any]:
    """Return the numbers of *campaign*; times without percentiles are means over the samples."""
    job, samples = campaign.job, campaign.samples
    seconds = fmean(sample.seconds for sample in samples)
    policy, written = job.checkpoints, build.writing(campaign.scenario, campaign.phases[-1].simulated)
    days = [sample.seconds / SECONDS_PER_DAY for sample in samples]
    paid = money(campaign)
    return {
        "name": campaign.scenario.name,
        "days": seconds / SECONDS_PER_DAY,
        "days_percentiles": percentiles(days),
        "days_without_failures": job.productive / SECONDS_PER_DAY,
        "steps": job.steps,
        "step_time_s": [stage.seconds for stage in job.stages],
        "goodput": job.productive / seconds,
        "goodput_percentiles": percentiles([job.productive / sample.seconds for sample in samples]),
        "interruptions": fmean(sample.interruptions for sample in samples),
        "interruptions_percentiles": percentiles([sample.interruptions for sample in samples]),
        "mtbf_s": campaign.mtbf,
        "checkpoints": fmean(sample.checkpoints for sample in samples),
        "checkpoint_bytes": written.size if written else None,
        "checkpoint_s": written.write if written else None,
        "checkpoint_stall_s": policy.stall if policy else None,
        "checkpoint_interval_s": job.interval if policy else None,
        "intervals_s": {rule: tau for rule, (tau, _) in campaign.estimates.items()},
        "expected_cost": {rule: cost for rule, (_, cost) in campaign.estimates.items()},
        "lost_s": {cause: fmean(sample.lost[cause] for sample in samples) for cause in LOST},
        "spares": _spares(campaign),
        "cost": paid["cost"],
        **({"cost_reserved": paid["cost_reserved"]} if "cost_reserved" in paid else {}),
        "gpu_hours": paid["gpu_hours"],
        "energy_mwh": paid["energy_mwh"],
        "co2_t": paid["co2_t"],
        "repeats": len(samples),
        "seed": campaign.seed,
    }


def money(campaign: Simulated) -> dict[str, float | None]:
    """Return GPU-hours, energy, cost and CO2 of the mean sample; spare nodes are paid for and idle."""
    job, cost = campaign.job, campaign.scenario.specification.cost
    gpus = campaign.scenario.derived.ranks
    held = gpus / job.nodes * (job.nodes + _held(campaign))
    seconds = fmean(sample.seconds for sample in campaign.samples)
    energies = [_joules(campaign, sample) for sample in campaign.samples]
    joules = [energy for energy in energies if energy is not None]
    return account(seconds, round(held), fmean(joules) if joules else None, cost)


def _held(campaign: Simulated) -> int:
    failures = campaign.job.failures
    return failures.spares or 0 if failures else 0


def _joules(campaign: Simulated, sample: Sample) -> float | None:
    """Return the energy of *sample* at the meter: steps as simulated, all else with idle GPUs."""
    job, last = campaign.job, campaign.phases[-1].result
    if last.power is None:
        return None
    watts = [phase.result.power.of_step(phase.result.breakdown) for phase in campaign.phases if phase.result.power]
    steps = sum(w * stage.steps * stage.seconds for w, stage in zip(watts, job.stages, strict=True))
    idle = sample.seconds - job.productive - sample.lost["rework"]
    waiting = last.power.idle * (idle + sample.seconds * _held(campaign) / job.nodes)
    return steps + watts[-1] * sample.lost["rework"] + waiting


def load(campaign: Simulated) -> float | None:
    """Return the mean number of nodes in repair if there were always a spare; None without repair or mean time."""
    failures, mean = campaign.job.failures, campaign.mtbf
    if failures is None or mean is None or failures.spares is None:
        return None
    return failures.broken * failures.repair / mean


def _spares(campaign: Simulated) -> dict[str, float] | None:
    """Return the share of the time that the job waits by theory, and the number of spares that costs least."""
    busy = load(campaign)
    if busy is None:
        return None
    best = closed_forms.cheapest(campaign.job.nodes, busy)
    return {
        "given": _held(campaign),
        "waiting_in_theory": closed_forms.waiting_share(_held(campaign), busy),
        "cheapest": best.spares,
        "waiting_with_cheapest": best.waiting,
    }


CAUSES = {
    "rework": "work done again",
    "checkpoint": "writing checkpoints",
    "detect": "noticing failures",
    "waiting": "waiting for a node",
    "restart": "restarting and loading",
    "shrunk": "training with fewer replicas",
    "maintenance": "maintenance",
}


def report(campaign: Simulated) -> str:
    """Return the text that `campaign` prints."""
    numbers = summary(campaign)
    parts = [
        f"{heading(campaign.scenario)}; {batch(campaign.scenario)}",
        _time(campaign, numbers),
        _lost(numbers),
        "\n".join(_checkpoints(campaign, numbers)),
        "\n".join(_nodes(campaign, numbers)),
        _money(campaign),
    ]
    return "\n\n".join(part for part in parts if part)


def side_by_side(campaigns: Mapping[str, Simulated]) -> str:
    """Return a table with a column for each of *campaigns*: time, where it goes, nodes and money."""
    numbers = [summary(one) for one in campaigns.values()]
    rows = [
        ["days", *(f"{one['days']:.4g}" for one in numbers)],
        *[
            [f"  {name}", *(f"{one['days_percentiles'].get(name, one['days']):.4g}" for one in numbers)]
            for name in dict.fromkeys(name for one in numbers for name in one["days_percentiles"])
        ],
        ["without failures", *(f"{one['days_without_failures']:.4g}" for one in numbers)],
        ["goodput", *(f"{one['goodput']:.2%}" for one in numbers)],
        ["last step", *(show(one["step_time_s"][-1], "time") for one in numbers)],
        ["interruptions", *(figure(one["interruptions"]) for one in numbers)],
    ]
    every = [one["checkpoint_interval_s"] for one in numbers]
    if any(every):
        rows.append(["checkpoint every", *(show_long(seconds) if seconds else "-" for seconds in every)])
    for cause, told in CAUSES.items():
        shares = [one["lost_s"][cause] / (one["days"] * SECONDS_PER_DAY) for one in numbers]
        if any(shares):
            rows.append([f"lost: {told}", *(f"{share:.2%}" for share in shares)])
    units = {
        "gpu_hours": "GPU-hours",
        "energy_mwh": "MWh",
        "co2_t": "t CO2",
        "cost": "cost",
        "cost_reserved": "reserved",
    }
    for key, unit in units.items():
        paid = [one.get(key) for one in numbers]
        if any(paid):
            rows.append([unit, *("-" if value is None else figure(value) for value in paid)])
    samples = " and ".join(dict.fromkeys(f"{one['repeats']}" for one in numbers))
    return f"{table(rows, ['', *campaigns], 'lr')}\nmeans and percentiles of {samples} samples each"


def _time(campaign: Simulated, numbers: dict[str, Any]) -> str:
    job, count = campaign.job, len(campaign.samples)
    ways = ", then ".join(f"{stage.steps:,} steps of {show(stage.seconds, 'time')}" for stage in job.stages)
    lines = [f"campaign of {show_long(numbers['days'] * SECONDS_PER_DAY)}: goodput {numbers['goodput']:.1%}"]
    if count > 1:
        shown = ", ".join(f"{name} {days:.4g}" for name, days in numbers["days_percentiles"].items())
        tail = "" if count >= TAIL_FROM else f"; p99 from {TAIL_FROM} samples on"
        lines.append(f"  days: {shown} of {count} samples{tail}")
    lines.append(f"  without failures {show_long(job.productive)}: {ways}")
    if job.failures is not None:
        every = f", one every {show_long(campaign.mtbf)} of running" if campaign.mtbf else " of the trace"
        lines.append(f"  {figure(numbers['interruptions'])} interruptions by failures{every}")
    return "\n".join(lines)


def _lost(numbers: dict[str, Any]) -> str:
    whole = numbers["days"] * SECONDS_PER_DAY
    lost = {cause: seconds for cause, seconds in numbers["lost_s"].items() if seconds > 0}
    if not lost:
        return ""
    rows = [["training", show_long(whole - sum(lost.values())), f"{numbers['goodput']:.2%}"]]
    by_size = sorted(lost.items(), key=lambda one: -one[1])
    rows += [[CAUSES[cause], show_long(seconds), f"{seconds / whole:.2%}"] for cause, seconds in by_size]
    return f"where the time goes, mean of the samples\n{indented(table(rows, align='lrr'))}"


def _checkpoints(campaign: Simulated, numbers: dict[str, Any]) -> Iterator[str]:
    policy = campaign.job.checkpoints
    if policy is None:
        if campaign.job.failures is not None:
            yield "no checkpoints: each failure begins the campaign anew; give campaign.checkpoint"
        return
    size = show(numbers["checkpoint_bytes"], "size", 3)
    stall = "" if policy.stall == policy.write else f", of which training stops for {show_long(policy.stall)}"
    yield (
        f"{figure(numbers['checkpoints'])} checkpoints of {size}, {show_long(policy.write)} to write{stall}; one every "
        f"{show_long(campaign.job.interval)} of training"
    )
    if campaign.estimates:
        best, least = campaign.estimates["optimal"]
        rows = [
            [rule, show_long(tau), f"{tau / best - 1:+.2%}", f"{cost:.5f}", f"{abs(cost / least - 1):.4%}"]
            for rule, (tau, cost) in campaign.estimates.items()
        ]
        header = ["rule", "interval", "from optimal", "time for each of work", "above the least"]
        yield indented(table(rows, header, "lrrrr"))
        yield indented("\n".join(_tried(campaign)))


def _tried(campaign: Simulated) -> Iterator[str]:
    """Yield the simulated time of other intervals, the least first named."""
    times = {tau: seconds for tau, seconds in campaign.tried if len(seconds) > 1}
    if not times:
        return
    best = min(times, key=lambda tau: fmean(times[tau]))
    error = stdev(times[best]) / len(times[best]) ** 0.5
    yield (
        f"by simulation, {FEW} samples each, the least is at {show_long(best)}: "
        f"{fmean(times[best]) / SECONDS_PER_DAY:.4g} days, standard error {error / SECONDS_PER_DAY:.2g}"
    )


def _nodes(campaign: Simulated, numbers: dict[str, Any]) -> Iterator[str]:
    busy, told = load(campaign), numbers["spares"]
    if busy is None or told is None:
        return
    waited = numbers["lost_s"]["waiting"] / (numbers["days"] * SECONDS_PER_DAY)
    yield (
        f"{told['given']} spare nodes beside {campaign.job.nodes}, {busy:.3g} in repair on average: the job waits "
        f"{waited:.2%} of the time, {told['waiting_in_theory']:.2%} in the long run by the chain of machine repair"
    )
    yield (
        f"  worth having: {told['cheapest']} spares, where one more costs more node time than it saves "
        f"(waiting {told['waiting_with_cheapest']:.2%})"
    )
    shares = [f"{count}: {closed_forms.waiting_share(count, busy):.1%}" for count in range(told["cheapest"] + 1)][-6:]
    yield f"  waiting by spares: {', '.join(shares)}"
    days = {way: seconds / SECONDS_PER_DAY for way, seconds in campaign.without_spare.items()}
    if days:
        yield (
            f"  without a spare: to wait takes {days['wait']:.4g} days in all, to go on with fewer replicas "
            f"{days['shrink']:.4g} ({FEW} samples each)"
        )


def _money(campaign: Simulated) -> str:
    paid, cost = money(campaign), campaign.scenario.specification.cost
    failures = campaign.job.failures
    spare = ", spares included" if failures and failures.spares else ""
    parts = [f"{figure(paid['gpu_hours'] or 0.0)} GPU-hours{spare}"]
    if paid["energy_mwh"] is not None:
        parts.append(f"{figure(paid['energy_mwh'])} MWh")
    if paid["co2_t"]:
        parts.append(f"{figure(paid['co2_t'])} t CO2")
    if paid["cost"]:
        parts.append(f"cost {figure(paid['cost'])} on demand")
    if paid.get("cost_reserved"):
        parts.append(f"{figure(paid['cost_reserved'] or 0.0)} reserved")
    idle = "" if cost and cost.idle_power else "; GPUs that wait take full power: give cost.idle_power"
    known = section(campaign.scenario).failures is not None and paid["energy_mwh"] is not None
    return f"{', '.join(parts)}{idle if known else ''}"


POINTS = 200
"""Points of the curve of costs."""

WIDER = 2.0
"""How far the curve goes beyond the intervals that are marked, as a factor."""

DRAWN_PERCENTILES = (5, 50, 95)
"""Percentiles of the time that are drawn."""


def draw(campaign: Simulated, path: Path) -> None:
    """Draw *campaign* to *path*, whose suffix gives the format."""
    from clustersim.simulator.charts.campaign import DAY, Course, draw_campaign

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
    if len(ordered) < len(DRAWN_PERCENTILES):
        return {"sample": ordered[0]}
    return {f"p{share}": ordered[round(share / 100 * (len(ordered) - 1))] for share in DRAWN_PERCENTILES}


def _intervals(campaign: Simulated) -> IntervalCosts | None:
    """Return the costs of intervals; those of simulations have everything that the formula leaves out."""
    from clustersim.simulator.charts.campaign import IntervalCosts

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
