"""`python -m tests.benchmarks` prints how fast the simulator is, beside the bounds. It does not pass or fail.

Its first table has a row for each whole process: start-up, plans and large runs, with the ratio of its CPU time to that
of an earlier commit, all of it and without start-up. The earlier code is that of `claims.BEFORE`; `--against REVISION`,
or the folder of a checkout, takes another, and `--alone` none. `--all` adds rows without a bound.

Arguments choose the tables: `processes`, `growth`, `engine`; default these. `layouts` prints how well it predicts grids
of layouts that were measured, in some minutes; `memory` how well it predicts which runs fit and what they hold;
`compression` how long compressed reductions take on the testbed.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.claims import BEFORE, HELLO, RATIOS, Claim, claims
from tests.benchmarks.processes import CLUSTERSIM, ROOT, Usage, checked_out, measured

TABLES = ("processes", "growth", "engine")
"""Tables of speed. Processes are measured first: the kernel counts memory of the parent at the fork as part of the peak
of a child."""

ACCURACY = ("layouts", "memory", "compression")
"""Tables of measured runs, only on request."""

QUICK = 10.0
"""A process with less CPU time, s, is measured twice, and the faster run counts."""


def main() -> None:
    """Print the tables that the command line names, each line when it is measured."""
    parser = ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; all unless given")
    parser.add_argument("--against", metavar="REVISION", default=BEFORE, help=f"compare with it; default {BEFORE}")
    parser.add_argument("--alone", action="store_true", help="compare with no other code")
    parser.add_argument("--all", action="store_true", help="also processes without a bound")
    parser.add_argument("--only", default="", metavar="TEXT", help="only processes whose name contains it")
    arguments = parser.parse_args()
    unknown = set(arguments.tables) - {*TABLES, *ACCURACY}
    if unknown:
        parser.error(f"there is no table {', '.join(sorted(unknown))}; there are {', '.join((*TABLES, *ACCURACY))}")
    for name in arguments.tables or TABLES:
        if name == "growth":
            growth()
        elif name == "engine":
            engine()
        elif name == "layouts":
            layouts()
        elif name == "memory":
            memory()
        elif name == "compression":
            compression()
        else:
            with nullcontext() if arguments.alone else checked_out(arguments.against) as before:
                processes(before, every=arguments.all, only=arguments.only)
        print()


HEADS = ("CPU s", "before", "ratio", "bound", "net", "wall s", "MB")
"""*net*: the ratio without start-up, the CPU time of `HELLO` with the same code."""


def processes(before: Path | None, *, every: bool, only: str) -> None:
    """Measure CPU time, wall time and memory of each claim as a process; with the code at *before* too, if given."""
    # compile the event loop before anything is measured
    measured((*CLUSTERSIM, "run", "--json", "hello", "--set", "simulation.engine=compiled"))
    print(f"{'whole processes':<36}" + "".join(f"{head:>8}" for head in HEADS))
    found: dict[str, Measured] = {}
    for claim in claims():
        if claim.name == HELLO or (only in claim.name and (every or claim.bounded)):
            found[claim.name] = both = _side_by_side(claim, before, found)
            print(_line(claim, both, found[HELLO]), flush=True)
    for over, under, bound in RATIOS:
        now, base = (found[name].now if name in found else None for name in (over, under))
        if now and base:
            print(f"{over} : {under} = {now.processor / base.processor:.2f}, bound {bound:g}")


@dataclass(frozen=True)
class Measured:
    """The usage of a process *now* and *then*, with the code before; None if it failed or was not run."""

    now: Usage | None
    then: Usage | None


def _side_by_side(claim: Claim, before: Path | None, found: Mapping[str, Measured]) -> Measured:
    """The usage of this code and of the code at *before*, in turns, so that the load of the machine is the same."""
    compared = before is not None and not claim.new and not claim.over
    roots = [ROOT, before] if before is not None and compared else [ROOT]
    usages: list[list[Usage]] = [[] for _ in roots]
    for _ in range(2):
        for own, root in zip(usages, roots, strict=True):
            usage = measured(claim.command, root)
            own.extend([usage] if usage else [])
        if not all(usages) or max(own[0].processor for own in usages) > QUICK:
            break
    best = [min(own, key=lambda usage: usage.processor, default=None) for own in usages]
    if claim.over:
        return Measured(best[0], found[HELLO].then)
    return Measured(best[0], best[1] if compared else None)


def _line(claim: Claim, both: Measured, start: Measured) -> str:
    now, then = both.now, both.then
    if now is None:
        return f"{claim.name:<36}   failed, or took too long"
    cells = [f"{now.processor:.2f}", "", "", "" if claim.ratio is None else f"{claim.ratio:g}", ""]
    if then:
        cells[1:3] = f"{then.processor:.2f}", f"{now.processor / then.processor:.2f}"
        if start.now and start.then and not claim.over and claim.name != HELLO:
            net = (now.processor - start.now.processor) / (then.processor - start.then.processor)
            cells[4] = f"{net:.2f}"
    cells += [f"{now.seconds:.2f}", f"{now.peak_bytes / 1e6:.0f}"]
    bounds = {"CPU s": claim.processor, "MB": claim.peak_bytes and claim.peak_bytes / 1e6}
    told = ", ".join(f"{bound:g} {unit}" for unit, bound in bounds.items() if bound)
    return f"{claim.name:<36}" + "".join(f"{cell:>8}" for cell in cells) + (f"   bounds: {told}" if told else "")


def growth() -> None:
    """Print how the cost grows with each size."""
    from tests.benchmarks.growth import growth

    print(f"{'growing':<16}{'to':>6}{'ranks':>8}{'simulated':>11}{'ops of all ranks':>18}{'CPU s':>8}")
    for one in growth():
        sizes = f"{one.amount:>6}{one.ranks:>8,}{one.representatives:>11,}{one.ops:>18,}"
        print(f"{one.what:<16}{sizes}{one.seconds:>8.2f}", flush=True)


def layouts() -> None:
    """Print errors of time and memory on grids of layouts; the best plan by prediction against the best measured."""
    from tests.benchmarks.layouts import layouts

    print(f"{'grid, and its jobs':<54}{'runs':>5}{'mean':>10}{'median':>9}{'bias':>9}")
    for line in layouts():
        print(line, flush=True)


def memory() -> None:
    """Print how many measured runs are rightly said to fit or not, and the errors of their peaks."""
    from tests.benchmarks.memory import memory

    for line in memory():
        print(line, flush=True)


def compression() -> None:
    """Print step times of compressed reductions on real ranks, simulated and measured."""
    from tests.benchmarks.compression import compression

    for line in compression():
        print(line, flush=True)


def engine() -> None:
    """Print the speed of the engines beside that of bare SimPy."""
    from tests.benchmarks.engine import choice, engine

    print(f"{'engine':<44}{'ops':>10}{'ops/s':>12}{'SimPy timeouts/s':>18}{'ratio':>7}{'wanted':>8}")
    for speed, bare in engine():
        wanted = f"{speed.wanted:.2g}" if speed.wanted else ""
        rates = f"{speed.count:>10,}{speed.rate:>12,.0f}{bare.rate:>18,.0f}{speed.rate / bare.rate:>7.2f}{wanted:>8}"
        print(f"{speed.name:<44}{rates}", flush=True)
    for line in choice():
        print(line, flush=True)


if __name__ == "__main__":
    main()
