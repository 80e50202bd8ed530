"""`python -m tests.benchmarks` prints how fast the simulator is, beside what is wanted; nothing here passes or fails.

Names choose tables, all unless given: `processes`, `folding`, `engine`, `jitter`. `--slow` adds the long lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from tests.benchmarks.claims import RATIOS, claims
from tests.benchmarks.processes import Usage, measured

WANTED = 0.2
"""Simulated ops per SimPy timeout: 60,000 a second where SimPy does 300,000."""

QUICK = 3.0
"""What takes less, s, is measured again, and the faster one counts."""


def main(arguments: list[str]) -> None:
    """Print the tables that *arguments* name, line by line as they are measured."""
    slow = "--slow" in arguments
    for name in [argument for argument in arguments if argument in TABLES] or TABLES:
        TABLES[name](slow)
        print()


def processes(slow: bool) -> None:
    """Each claim as a process: wall time, the processor's, and memory, beside what is wanted."""
    print(f"{'whole processes':<44}{'wall s':>8}{'CPU s':>8}{'wanted':>8}{'MiB':>8}{'wanted':>8}")
    found: dict[str, Usage] = {}
    for claim in claims():
        if claim.slow and not slow:
            continue
        usage = measured(claim.command)
        if usage and usage.processor < QUICK:
            usage = measured(claim.command, rounds=2) or usage
        if usage is None:
            print(f"{claim.name:<44}   failed, or took too long", flush=True)
            continue
        found[claim.name] = usage
        wanted = "" if claim.seconds is None else f"{claim.seconds:g}"
        least = "" if claim.peak_bytes is None else f"{claim.peak_bytes / 2**20:.0f}"
        print(
            f"{claim.name:<44}{usage.seconds:>8.2f}{usage.processor:>8.2f}{wanted:>8}"
            f"{usage.peak_bytes / 2**20:>8.0f}{least:>8}",
            flush=True,
        )
    _ratios(found)


def _ratios(found: Mapping[str, Usage]) -> None:
    for over, under, wanted in RATIOS:
        if over in found and under in found:
            ratio = found[over].processor / found[under].processor
            print(f"{over} : {under} = {ratio:.2f}, wanted at most {wanted:g}")


def folding(slow: bool) -> None:
    """How the cost grows with each size."""
    from tests.benchmarks.folding import growth

    print(f"{'growing':<16}{'to':>6}{'ranks':>8}{'simulated':>11}{'ops of all ranks':>18}{'CPU s':>8}")
    for one in growth():
        sizes = f"{one.amount:>6}{one.ranks:>8,}{one.representatives:>11,}{one.ops:>18,}"
        print(f"{one.what:<16}{sizes}{one.seconds:>8.2f}", flush=True)


def engine(slow: bool) -> None:
    """The engine beside bare SimPy."""
    from tests.benchmarks.engine import engine

    print(f"{'engine':<40}{'ops':>10}{'ops/s':>12}{'SimPy timeouts/s':>20}{'ratio':>8}")
    for speed, bare in engine():
        ratio = speed.rate / bare.rate
        behind = "" if ratio >= WANTED else f"   wanted: {WANTED}"
        rates = f"{speed.count:>10,}{speed.rate:>12,.0f}{bare.rate:>20,.0f}{ratio:>8.2f}"
        print(f"{speed.name:<40}{rates}{behind}", flush=True)


def jitter(slow: bool) -> None:
    """Every rank for itself; *slow* also all of them, and the spread of a step over seeds on 1,024 GPUs, else on 64."""
    from tests.benchmarks.jitter import ALL_RANKS, all_ranks, growth, seeds

    told = growth()
    whole = all_ranks() if slow else None
    print(f"{'MegaScale, jitter on every rank':<44}{'wall s':>8}{'CPU s':>8}{'MiB':>8}")
    for ranks, usage in {**told.usages, **({ALL_RANKS: whole} if whole else {})}.items():
        print(f"{ranks:<44,}{usage.seconds:>8.2f}{usage.processor:>8.2f}{usage.peak_bytes / 2**20:>8.0f}")
    if slow and whole is None:
        print(f"{ALL_RANKS:<44,}   failed, or took too long", flush=True)
    line = f"{ALL_RANKS:,}, on the line through two smaller runs; wanted: 120 s, 12 GiB"
    print(f"{line:<60}{told.seconds:>8.0f}{told.peak_bytes / 2**20:>8.0f}", flush=True)
    one = {} if slow else {"cluster.nodes": 8, "training.global_batch_size": 16}
    drawn = seeds(20, "gpt3_175b_1024a100", one)
    times = sorted(drawn.step_times)
    spread = ", ".join(f"{name} {times[place]:.3f} s" for name, place in {"least": 0, "median": 10, "most": -1}.items())
    print(f"GPT-3, {1024 if slow else 64} GPUs, 20 seeds: {spread}; all in {drawn.seconds:.0f} s, wanted 300 s")


TABLES: dict[str, Callable[[bool], None]] = {
    "processes": processes,
    "folding": folding,
    "engine": engine,
    "jitter": jitter,
}
"""Processes first: to the kernel a child's peak begins with what its parent held when it was forked."""


if __name__ == "__main__":
    main(sys.argv[1:])
