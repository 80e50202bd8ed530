"""How often the best plan of a random job is among those that a plan simulates.

`python -m tests.benchmarks.plan_random_jobs [JOBS]` simulates every candidate that fits of each job, in this process,
and prints the figure; 100 jobs take half an hour.
"""

from __future__ import annotations

import sys
from math import inf

from clustersim.scenarios.search.planner import Planner
from tests.scenarios.search.jobs import random_job

SIMULATED = 20
"""Candidates that `plan` simulates by default."""


def rank_of_the_best(seed: int) -> tuple[int, int, float]:
    """Return the place by estimate of the candidate that is best by simulation (from 0), how many fit, and the loss.

    The loss is how much longer the best of the first `SIMULATED` takes, as a share.
    """
    planner = Planner(random_job(seed))
    planner.bound(planner.candidates)
    planner.estimate(planner.open)
    fitting = [one for one in planner.open if not planner.kind(one)]
    fitting.sort(key=lambda one: planner.journal.estimated[one.key].seconds or inf)
    seconds = [one.seconds for one in planner.simulate(fitting)]
    best = min(seconds)
    return seconds.index(best), len(seconds), min(seconds[:SIMULATED]) / best - 1


def main() -> None:
    """Print a line for each job, and the figure."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    places = []
    for seed in range(jobs):
        place, count, loss = rank_of_the_best(seed)
        places.append(place)
        print(f"job {seed}: the best of {count} is number {place + 1} by estimate; {loss:.2%} lost", flush=True)
    found = sum(place < SIMULATED for place in places)
    print(f"the best is among the first {SIMULATED} by estimate in {found} of {jobs} jobs")


if __name__ == "__main__":
    main()
