"""Fits: the cost parameters of the catalogue from measurements, by robust least squares."""
