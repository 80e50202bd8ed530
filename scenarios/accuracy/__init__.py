"""Predictions against measurements: comparisons, errors by source, intervals, the fits of the constants, and the
calibration by measurements of a user's own.
"""
