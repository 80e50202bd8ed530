"""Evaluation holds predictions against published measurements."""
