"""Hardware: kernels and the accelerators that compute them, clusters as graphs of links, and the numbering of their
equal parts.
"""
