"""`make pictures` draws the pictures in docs/ anew and writes ACCURACY.md.

`python docs/pictures.py timeline links` draws these two only. A picture that cannot be drawn stays as it is, and the
reason is printed: `validation` needs torch, root and iproute2.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from matplotlib.figure import Figure

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.simulator.charts.canvas import save, style
from clustersim.simulator.charts.figures import CHARTS

DOCS = Path(__file__).parent
JOBS = "2"
"""The number of processes that run the published scenarios."""


def _plotted(picture: str, scenario: str, *options: str) -> Callable[[], int]:
    return lambda: run(["plot", scenario, *options, "-o", str(DOCS / f"{picture}.png")])


def _accuracy() -> int:
    """Compare the published runs with their measurements: ACCURACY.md, accuracy.png and ptd_p_against_zero_3.png."""
    status = run(["accuracy", "-j", JOBS, "-o", str(DOCS.parent / "ACCURACY.md"), "--figures", str(DOCS)])
    import_module("readme").main()
    return status


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


def _of_gpt2(chart: str, title: str) -> Callable[[], int]:
    """Return what draws *chart* of GPT-2 on a V100, eager."""

    def draw() -> int:
        Scenario.load("gpt2_one_v100").variants["eager"].run().plot(chart, DOCS / f"{chart}.png", title=title)
        return 0

    return draw


def _offload() -> int:
    """Sweep the bandwidth of the link to the host, for recomputation, offloading and both, and copy the chart."""
    values = ",".join(f"{one} GB/s" for one in (20, 30, 40, 50, 60, 80, 100))
    with tempfile.TemporaryDirectory() as folder:
        table = ["-o", f"{folder}/offload.csv", "--plot", "cluster.bandwidth:step_time_s:variant"]
        status = run(["sweep", "gpt_offload_one_a100", "--over", f"cluster.bandwidth={values}", *table])
        if status == 0:
            shutil.copyfile(Path(folder) / "offload.png", DOCS / "offload.png")
    return status


def _queue() -> int:
    """Draw which job holds which node in a queue with backfilling."""
    name = "queue_by_policy"
    found = Scenario.load(name).variants["backfill"].run()
    found.plot("timeline", DOCS / "queue.png", title=f"{name} on 16 nodes of 4 V100: backfill, by_leaf")
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


BUCKETS = (1, 2, 5, 10, 25, 50, 100, 200)
"""Sizes of buckets that `_buckets` draws, MiB."""


def _buckets() -> int:
    """Draw the step time of DDP over the size of its buckets on 16 and 32 V100, 64 images or 32 sentences a GPU."""
    with style():
        figure = Figure((12.0, 4.2), layout="constrained")
        for axes, (model, title) in zip(
            figure.subplots(1, 2), (("resnet50", "ResNet-50"), ("bert", "BERT base, 128 tokens")), strict=True
        ):
            for nodes in (2, 4):
                batch = {"resnet50": 64, "bert": 32}[model] * 8 * nodes
                changes = {"cluster.nodes": nodes, "training.global_batch_size": batch}
                base = Scenario.load("ddp_buckets_32v100").variants[model]
                runs = [
                    base.changed({**changes, "parallelism.data.bucket": f"{size} MiB"}, "buckets").run()
                    for size in BUCKETS
                ]
                axes.plot(BUCKETS, [1e3 * one.timeline.step_time for one in runs], "o-", label=f"{8 * nodes} GPUs")
            axes.set(xscale="log", title=f"{title}: DDP's buckets", xlabel="bucket (MiB)", ylabel="step time (ms)")
            axes.set_xticks(BUCKETS, map(str, BUCKETS))
            axes.minorticks_off()
            axes.set_ylim(0, 1.1 * axes.dataLim.ymax)
            axes.legend(loc="lower left")
        save(figure, DOCS / "buckets.png")
    return 0


def _local_steps() -> int:
    """Draw the end of a period of DiLoCo and an exchange of Streaming DiLoCo beside its inner steps."""
    with style():
        name = "local_steps_slow_network"
        streaming = Scenario.load(name).variants["streaming_64"].run()
        begin, step = streaming.timeline.window[0], streaming.timeline.step_time
        window = begin + 15.5 * step, begin + 18.5 * step
        title = f"{name}, streaming_64: an exchange of a quarter of the weights beside the next step"
        save(CHARTS["timeline"](streaming.timeline, [0, 8], window, title), DOCS / "local_steps.png")
    return 0


PICTURES: dict[str, Callable[[], int]] = {
    "timeline": _plotted("timeline", "zhores_resnet50_ddp", "timeline", "--ranks", "0:4"),
    "links": _plotted("links", "zhores_resnet50_ddp", "links"),
    "context": _context,
    "operators": _of_gpt2("operators", "GPT-2 on a V100, eager: 8 sequences of 512 tokens"),
    "activations": _of_gpt2("activations", "Activations of GPT-2 on a V100, eager"),
    "buckets": _buckets,
    "local_steps": _local_steps,
    "offload": _offload,
    "queue": _queue,
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
