"""The numbers of a simulated campaign, as `campaign --json` prints them."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from scenarios.campaign import build, spares
from scenarios.campaign.campaign import Simulated
from scenarios.campaign.job import LOST
from scenarios.campaign.process import Sample
from scenarios.cost.energy import SECONDS_PER_DAY, account
from simulator.analysis.percentiles import percentiles


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
    best = spares.cheapest(campaign.job.nodes, busy)
    return {
        "given": _held(campaign),
        "waiting_in_theory": spares.waiting_share(_held(campaign), busy),
        "cheapest": best.spares,
        "waiting_with_cheapest": best.waiting,
    }
