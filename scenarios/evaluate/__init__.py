"""Comparison of predictions with published measurements."""
