"""The base of clustersim: schedules, clusters, timelines, and the engine that simulates a schedule on a cluster.

The names that users' own experiments need can be imported from here; they are loaded on first use.

>>> import simulator
>>> simulator.Link("nvlink3", 25e9, 1e-6).kind
'nvlink3'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.analysis.timeline import Span, Timeline
    from simulator.engine.interface.variation import Variation
    from simulator.engine.simulate import simulate
    from simulator.hardware.accelerator import Accelerator, Software
    from simulator.hardware.cluster import Cluster
    from simulator.hardware.kernel import Kernel
    from simulator.hardware.links import Link
    from simulator.reading.errors import SimulatorError
    from simulator.schedule.mesh import Axis, Mesh
    from simulator.schedule.ops import Collective, Compute, Copy, Delay, Recv, Send
    from simulator.schedule.pipeline_order import Action, Order
    from simulator.schedule.program import Program
    from simulator.schedule.schedule import Schedule

__all__ = [
    "Accelerator",
    "Action",
    "Axis",
    "Cluster",
    "Collective",
    "Compute",
    "Copy",
    "Delay",
    "Kernel",
    "Link",
    "Mesh",
    "Order",
    "Program",
    "Recv",
    "Schedule",
    "Send",
    "SimulatorError",
    "Software",
    "Span",
    "Timeline",
    "Variation",
    "simulate",
]

_HOMES = {
    "accelerator": ("Accelerator", "Software"),
    "cluster": ("Cluster", "Link"),
    "engine.simulate": ("simulate",),
    "engine.variation": ("Variation",),
    "errors": ("SimulatorError",),
    "kernel": ("Kernel",),
    "schedule.mesh": ("Axis", "Mesh"),
    "schedule.order": ("Action", "Order"),
    "schedule": ("Collective", "Compute", "Copy", "Delay", "Program", "Recv", "Schedule", "Send"),
    "timeline": ("Span", "Timeline"),
}


def __getattr__(name: str) -> Any:
    from simulator.reading.lookup import module

    for home, names in _HOMES.items():
        if name in names:
            return getattr(module(f"simulator.{home}"), name)
    raise AttributeError(f"module simulator has no attribute {name}")
