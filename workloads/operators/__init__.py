"""Operators of a layer: their parameter tensors, kernels by phase, what they keep, and what the ranks exchange."""
