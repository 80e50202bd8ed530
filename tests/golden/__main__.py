"""`python -m tests.golden` runs every shipped scenario and writes `golden.json` anew.

Write it anew only when a number is meant to change: a scenario is added or edited, a parameter of the cost model is
changed or fitted again, or a fault of the simulator is mended. Name the scenarios as arguments, so that the numbers of
all others stay. Read the diff, and say in the commit which numbers changed and why. Never write it anew to make a test
pass after a change that should keep all results, such as a new engine.

The numbers are those of the code, right or wrong. When the file was first written, one fault was known: a folded op
could begin a rounding error before the end of the previous op of its stream, so that some folded FSDP runs had a memory
peak up to 23 % too high. All scenarios of at most 384 GPUs had the same numbers unfolded then.
"""

from __future__ import annotations

import sys

from tests.golden.measure import golden, measured, scenarios, write


def main(names: list[str]) -> None:
    """Run the scenarios *names* (default: all) and store their quantities."""
    stored = golden() if names else {}
    for name in names or scenarios():
        print(name, flush=True)
        stored[name] = measured(name)
    write({name: stored[name] for name in scenarios() if name in stored})


if __name__ == "__main__":
    main(sys.argv[1:])
