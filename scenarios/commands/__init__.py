"""The commands, one file each; they are thin, and load what they need when they are called."""

from scenarios.commands import accuracy, calibrate, check, compare, listing, plot, run, schema, show, validate

__all__ = ["accuracy", "calibrate", "check", "compare", "listing", "plot", "run", "schema", "show", "validate"]
