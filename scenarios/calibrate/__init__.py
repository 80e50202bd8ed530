"""Calibration fits cost parameters to measurements and writes them to a file."""
