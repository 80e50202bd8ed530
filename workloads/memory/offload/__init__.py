"""Offload: states and activations in the memory of the host, or on its drives, in place of the GPU's."""
