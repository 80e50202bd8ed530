"""Targets of an export, one a file with a function of its name; files that begin with ``_`` are none."""
