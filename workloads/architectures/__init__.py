"""Models by architecture, from the `model:` section of a scenario to layers of operators."""
