"""The names of the charts of a result."""

CHARTS = (
    "timeline", "pipeline", "memory", "states", "breakdown", "links", "repeats", "critical", "topology", "sweep"
)  # fmt: skip
OF_TRAINING = {"critical": "critical path", "memory": "chart of memory", "pipeline": "pipeline order"}
"""Charts that only the training of a model has, and what it has."""
