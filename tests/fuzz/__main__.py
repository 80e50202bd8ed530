"""`python -m tests.fuzz` makes scenarios and damaged files until the time is over, and prints what is wrong with any.

    python -m tests.fuzz [scenarios|files] [--seed N] [--count N] [--minutes M]

The short suite runs some of both with a fixed seed. A finding is mended at its cause and becomes a test of its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from time import monotonic

from tests.fuzz import files, scenarios

TWO_PROCESSES = 20
"""Every so many scenarios, one is run in two processes too: their start takes seconds."""


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that *arguments* name; return 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Generated scenarios and damaged files.")
    parser.add_argument("parts", nargs="*", choices=["scenarios", "files", []], help="default: both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000, help="of each part at most")
    parser.add_argument("--minutes", type=float, default=600.0, help="of each part at most")
    given = parser.parse_args(arguments)
    parts = {"scenarios": fuzz_scenarios, "files": fuzz_files}
    return max([parts[part](given.seed, given.count, given.minutes) for part in given.parts or parts])


def fuzz_scenarios(seed: int, count: int, minutes: float) -> int:
    """Judge generated scenarios; return 1 if there are findings."""
    end, tally = monotonic() + 60 * minutes, scenarios.Tally()
    for number, scenario in enumerate(scenarios.generated(seed, count)):
        if monotonic() > end:
            break
        ending = scenarios.judged(scenario, processes=number % TWO_PROCESSES == 0)
        tally.add(ending)
        if isinstance(ending, scenarios.Finding):
            print(ending, flush=True)
    print(f"scenarios, seed {seed}: {tally}")
    return 1 if tally.findings else 0


def fuzz_files(seed: int, count: int, minutes: float) -> int:
    """Read damaged files; return 1 if there are findings."""
    end, read, wrong = monotonic() + 60 * minutes, 0, 0
    for reader, name, content in files.generated(seed, count):
        if monotonic() > end:
            break
        with tempfile.TemporaryDirectory() as folder:
            fault = files.fault(reader, name, content, Path(folder))
        read += 1
        if fault:
            wrong += 1
            print(f"{reader.name} {name}: {fault}\n{content[:3000]!r}\n", flush=True)
    print(f"files, seed {seed}: {read} read, {wrong} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
