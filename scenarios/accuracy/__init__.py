"""Predictions against measurements: comparisons, errors by source, intervals, and the fits of the constants."""
