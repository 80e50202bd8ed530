"""Calibration by measurement: where ranks stood, what they measured, what follows of it, and the file that keeps it."""
