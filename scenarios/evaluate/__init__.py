"""Comparison of predictions with measurements: published ones, and replays on real processes."""
