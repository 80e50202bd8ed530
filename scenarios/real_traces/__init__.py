"""Traces of real runs as they are read: events, kernels, collectives and steps of each rank, and parts of a step."""
