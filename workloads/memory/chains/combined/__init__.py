"""Recomputation and offloading together: the fastest plan for a chain within a budget of memory on the GPU."""
