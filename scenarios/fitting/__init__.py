"""Fits of the catalogue's cost parameters to measurements, by robust least squares."""
