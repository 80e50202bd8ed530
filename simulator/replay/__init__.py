"""Validation of schedules on real devices: replay, measurement, and a real network on one machine."""
