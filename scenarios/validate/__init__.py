"""Validation replays a scenario on real processes and compares the simulation with the measurement."""
