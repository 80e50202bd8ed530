"""Variations measured on published traces: a YAML file each, named in a scenario as simulation.variation.preset."""
