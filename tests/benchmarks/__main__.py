"""`python -m tests.benchmarks` prints how fast the simulator is; nothing here passes or fails."""

from __future__ import annotations

from tests.benchmarks.processes import processes

WANTED = 0.2
"""Simulated ops per SimPy timeout: 60,000 a second where SimPy does 300,000."""


def main() -> None:
    """Print both tables, line by line as they are measured."""
    print(f"{'clustersim':<50}{'s':>10}{'peak MB':>12}")
    for process in processes():
        print(f"{process.command:<50}{process.seconds:>10.2f}{process.peak_bytes / 1e6:>12.0f}")
    # not before: to the kernel a child's peak begins with what its parent held when it was forked
    from tests.benchmarks.engine import engine

    print(f"\n{'engine':<40}{'ops':>10}{'ops/s':>12}{'SimPy timeouts/s':>20}{'ratio':>8}")
    for speed, bare in engine():
        ratio = speed.rate / bare.rate
        behind = "" if ratio >= WANTED else f"   wanted: {WANTED}"
        print(f"{speed.name:<40}{speed.count:>10,}{speed.rate:>12,.0f}{bare.rate:>20,.0f}{ratio:>8.2f}{behind}")


if __name__ == "__main__":
    main()
