"""A trace of a real run as a workload: its computations keep their durations, its collectives are simulated."""
