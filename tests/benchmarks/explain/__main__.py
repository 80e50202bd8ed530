"""`python -m tests.benchmarks.explain FOLDER` explains recorded trials and counts the first causes that are right.

FOLDER is what `python -m tests.benchmarks.explain.recording FOLDER` wrote. Each trial is compared with a scenario
made from the healthy recording before it. It does not pass or fail.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from clustersim.scenarios.explain.gap import Gap, compared
from clustersim.scenarios.real_traces.run import run_of
from tests.benchmarks.explain.scenario import scenario_of

RIGHT = {"healthy": None, "sleep": "late_rank", "bucket": "other_sizes", "overlap": "missing_overlap"}
"""The first cause of each fault."""


FASTEST = 3
"""Steps of each recording that count: other work on the machine only lengthens a step."""


def main(folder: Path) -> None:
    """Print the first cause of each trial, and for each fault how many are right."""
    for fault, cause in RIGHT.items():
        right = 0
        trials = sorted(folder.glob(f"{fault}*"))
        for trial in trials:
            found = explained(folder, trial)
            kind = found.first.kind if found.first else None
            right += kind == cause
            text = found.first.text if found.first else "no cause is sure"
            share, mark = found.seconds / found.simulated, "right" if kind == cause else "WRONG"
            print(f"{trial.name:<12}{share:>+8.1%}  {mark}  {text}", flush=True)
        print(f"{fault}: {right} of {len(trials)} right\n", flush=True)


def explained(folder: Path, trial: Path) -> Gap:
    """Return the gap of *trial* to the scenario of the healthy recording before it."""
    number = int(trial.name[-1])
    before = f"healthy{number}" if not trial.name.startswith("healthy") else f"healthy{number - 1}"
    reference = folder / (before if (folder / before).exists() else "reference0")
    with TemporaryDirectory() as made:
        scenario = scenario_of(run_of([reference], FASTEST), Path(made))
        return compared(run_of([trial], FASTEST), scenario)[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
