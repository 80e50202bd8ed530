"""Alternatives to a scenario: what may vary in it, one choice of that, and what to change for less memory or time."""
