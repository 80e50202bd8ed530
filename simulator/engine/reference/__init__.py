"""The reference engine: a schedule interpreted op by op with SimPy, every op an event; slow, and meant to be read."""

from simulator.engine.reference.simulation import run

__all__ = ["run"]
