"""Fabrics, the networks between NICs: one function in a file of the same name."""
