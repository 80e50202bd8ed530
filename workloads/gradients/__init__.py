"""Gradients of a training step: which op completes them, in which buckets they are reduced, and their norm."""
