"""The estimate of a candidate without its simulation, and lower bounds of it."""
