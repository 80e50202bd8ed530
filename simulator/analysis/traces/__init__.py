"""Timelines as traces for Perfetto and Chrome."""
