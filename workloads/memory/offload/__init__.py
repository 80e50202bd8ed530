"""Offload of activations to the memory of the host: which layers, when copies begin and end, together with recomputation."""
