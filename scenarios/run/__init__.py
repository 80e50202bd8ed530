"""Runs: the simulation of a scenario, sweeps over its keys, and execution here, in processes or on a cluster."""
