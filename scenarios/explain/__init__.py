"""Traces of real runs: kernels, collectives and steps of each rank; the gap to a simulation, and its causes."""
