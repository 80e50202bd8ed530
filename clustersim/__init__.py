"""``python -m clustersim`` is the command line; the packages are simulator, topologies, workloads and scenarios."""
