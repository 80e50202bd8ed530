"""`make pictures` draws the pictures in docs/ anew and writes ACCURACY.md.

`python docs/pictures.py timeline links` draws these two only. A picture that cannot be drawn stays as it is, and the
reason is printed: `validation` needs torch, root and iproute2.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from scenarios import Scenario
from scenarios.command import run
from simulator.analysis.plot import CHARTS
from simulator.analysis.plot.canvas import style

DOCS = Path(__file__).parent
JOBS = "2"
"""The number of processes that run the published scenarios."""


def _plotted(picture: str, scenario: str, *options: str) -> Callable[[], int]:
    return lambda: run(["plot", scenario, *options, "-o", str(DOCS / f"{picture}.png")])


def _accuracy() -> int:
    """Compare the published runs with their measurements: ACCURACY.md, accuracy.png and ptd_p_against_zero_3.png."""
    return run(["accuracy", "-j", JOBS, "-o", str(DOCS.parent / "ACCURACY.md"), "--figures", str(DOCS)])


def _plan() -> int:
    """Plan Llama 3 8B on 32 H100 and copy the picture."""
    with tempfile.TemporaryDirectory() as folder:
        job = ["--model", "llama3_8b", "--cluster", "dgx_h100", "--nodes", "4", "--batch", "512", "--tokens", "1T"]
        status = run(["plan", *job, "-j", JOBS, "-o", folder])
        if status == 0:
            shutil.copyfile(Path(folder) / "plan.png", DOCS / "plan.png")
    return status


def _validation() -> int:
    """Replay 1F1B on a testbed and copy the chart."""
    with tempfile.TemporaryDirectory() as folder:
        status = run(["validate", "two_nodes_of_2", "--testbed", "-o", folder])
        if status == 0:
            shutil.copyfile(Path(folder) / "validation_1f1b.png", DOCS / "validation.png")
    return status


def _context() -> int:
    """Draw a layer of the zigzag ring on three of the eight ranks that share a sequence."""
    name = "llama3_8b_131k_32h100"
    zigzag = Scenario.load(name).variants["zigzag"].run()
    with style():
        figure = CHARTS["timeline"](zigzag.timeline, [0, 3, 7], (0.52, 0.58), f"{name}, zigzag: a layer's forward pass")
        figure.savefig(DOCS / "context.png")
    return 0


def _compression() -> int:
    """Draw signs, whose messages are decoded beside the backward pass."""
    name = "slow_network_compression"
    sign = Scenario.load(name).variants["sign"].run()
    with style():
        figure = CHARTS["timeline"](sign.timeline, None, None, f"{name}: signs of gradients on 16 GPUs")
        figure.savefig(DOCS / "compression.png")
    return 0


def _sweep() -> int:
    """Sweep over the degrees of tensor and pipeline parallelism and copy the chart."""
    over = ["--over", "parallelism.tp=1,2,4,8", "--over", "parallelism.pp=1,2,4,8", "--set", "parallelism.dp=auto"]
    with tempfile.TemporaryDirectory() as folder:
        table = ["-o", f"{folder}/sweep.csv", "--plot", "parallelism.tp:parallelism.pp"]
        status = run(["sweep", "gpt_6_7b_64a100", *over, "-j", JOBS, *table])
        if status == 0:
            shutil.copyfile(Path(folder) / "sweep.png", DOCS / "sweep.png")
    return status


PICTURES: dict[str, Callable[[], int]] = {
    "timeline": _plotted("timeline", "zhores_resnet50_ddp", "timeline", "--ranks", "0:4"),
    "links": _plotted("links", "zhores_resnet50_ddp", "links"),
    "context": _context,
    "compression": _compression,
    "sweep": _sweep,
    "plan": _plan,
    "validation": _validation,
    "accuracy": _accuracy,
}


def main(names: list[str]) -> int:
    """Draw the pictures *names* (default: all). Return 1 if one could not be drawn, 2 for an unknown name."""
    unknown = [name for name in names if name not in PICTURES]
    if unknown:
        print(f"there is no picture {unknown[0]}; there are {', '.join(PICTURES)}", file=sys.stderr)
        return 2
    failed = [name for name in names or PICTURES if PICTURES[name]() != 0]
    for name in failed:
        print(f"{name}: not drawn, for the reason above; what is in docs/ stays", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
