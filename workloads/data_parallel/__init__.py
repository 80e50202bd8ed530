"""Data-parallel replicas: gradients, their buckets, reduction and norm; sharded states and parameters."""
