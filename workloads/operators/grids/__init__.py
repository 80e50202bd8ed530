"""Transformers cut over a grid of ranks: two, two and a half, and three dimensions."""
