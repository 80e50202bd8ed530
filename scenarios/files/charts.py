"""The names of the charts of a result."""

CHARTS = (
    "timeline", "pipeline", "memory", "states", "breakdown", "links", "repeats", "critical", "operators", "topology",
    "sweep", "steps",
)  # fmt: skip
WITHOUT_RUN = ("activations",)
"""Charts of a scenario that is not simulated for them."""
OF_COLLECTIVES = ("steps",)
"""Charts that only a collective has."""
OF_TRAINING = {
    "activations": "activations",
    "critical": "critical path",
    "memory": "chart of memory",
    "operators": "operators",
    "pipeline": "pipeline order",
}
"""Charts that only the training of a model has, and what it has."""
