"""Traces of real runs as they are read, events, kernels, collectives and steps of each rank; and a trace as a workload,
whose computations keep their durations, and whose collectives are simulated.
"""
