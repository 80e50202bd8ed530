"""The gap between traces of a real run and a simulation, its causes, and what a calibration learns from them."""
