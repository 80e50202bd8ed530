"""Chains of layers: which activations are kept, computed again or copied to the host, and what that costs."""
