"""Step times of compressed reductions on the testbed, simulated and measured; aim: within 12 %.

The network is calibrated on single messages, the processor on products and copies. Ranks share the machine's cores, so
that kernels take as much longer as there are ranks for a core.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from tests.simulator.replay.compressed import COMPRESSION, FIRST, STAR, Step, schedule, train

STEPS = 12
"""Steps with each hook; the shortest after the first ones counts."""

SIZES = (8, 1000, 500_000, 1_000_000, 2_000_000)
"""Bytes of the messages on which the network is calibrated."""


def compression() -> Iterator[str]:
    """Yield the lines of the table, one for each hook."""
    from clustersim.simulator.network.library.gloo import gloo
    from clustersim.simulator.replay import testbed
    from clustersim.simulator.replay.accelerator_fit import entry
    from clustersim.simulator.replay.launch import launch
    from clustersim.simulator.replay.measure_communication import measure
    from clustersim.simulator.replay.measure_device import measure_device
    from clustersim.simulator.replay.measurements import SEND, SizeSweep
    from clustersim.simulator.replay.transport_fit import calibrate
    from clustersim.simulator.simulate import simulate

    ranks = len(STAR.gpus)
    processor = entry(measure_device("cpu")).accelerator
    sharing = max(1.0, ranks / (os.cpu_count() or 1))

    rates = {"fp32": processor.peak("fp32") / sharing}
    shared = replace(processor, peak_flops=rates, memory_bandwidth=processor.memory_bandwidth / sharing)
    sweep = SizeSweep(sizes=SIZES, kinds=(SEND,), budget=8.0)
    with testbed.build(STAR, STAR.gpus) as built:
        rows = launch(measure, [sweep, sweep], places=built.places[:2], timeout=60.0)
        results = launch(train, [(tuple(COMPRESSION), STEPS)] * ranks, places=built.places, timeout=300.0)
    assert rows is not None
    assert results is not None
    transport = calibrate(rows[0], built.cluster, STAR.gpus[:2], gloo()).transport
    cluster = built.cluster.with_accelerators({built.cluster.accelerator(gpu): shared for gpu in STAR.gpus})
    yield (f"{'compressed reductions on four ranks':<46}{'simulated ms':>14}{'measured ms':>14}{'error':>9}")
    for hook in COMPRESSION:
        simulated = simulate(schedule(hook), cluster, transport=transport).makespan
        measured = min(max(times) for times in zip(*(_seconds(rank[hook]) for rank in results), strict=True))
        error = simulated / measured - 1
        yield (f"{hook:<46}{simulated * 1e3:>14.1f}{measured * 1e3:>14.1f}{error:>+9.1%}")


def _seconds(steps: list[Step]) -> list[float]:
    return [step.seconds for step in steps[FIRST:]]
