"""The scenario of a healthy recording: its phases, its gradients, and its network, all as the traces measured them."""

from __future__ import annotations

from pathlib import Path

from clustersim.scenarios.explain.calibration import write
from clustersim.scenarios.real_traces.kernels_and_communications import large, sizes
from clustersim.scenarios.real_traces.pieces_of_work import HOST, PHASES
from clustersim.scenarios.real_traces.run import RealRun
from clustersim.scenarios.scenario import Scenario


def scenario_of(run: RealRun, folder: Path) -> Scenario:
    """Return DDP of as many equal layers as *run* has buckets. Its calibration is written into *folder*."""
    calibration = folder / "calibration.yaml"
    write(run, None, calibration)
    buckets = large(sizes(run.traces), "all_reduce")
    layers = round(sum(one.per_step for one in buckets))
    nbytes = sum(one.per_step * (one.call.nbytes or 0.0) for one in buckets)
    computing = sum(run.parts.get(part, 0.0) for part in (*PHASES, HOST))
    backward = run.parts["backward"]
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": str(calibration), "accelerator": "unit"},
            "model": {
                "kind": "unit",
                "num_layers": layers,
                "forward": f"{(computing - backward) / layers} s",
                "backward": f"{backward / layers} s",
                "parameters": round(nbytes / 4),
            },
            "training": {"global_batch_size": run.world_size, "precision": "fp32"},
            "parallelism": {"data": {"method": "ddp", "bucket": f"{round(nbytes / layers)} B"}},
            "network": {"transport": str(calibration)},
        }
    )
