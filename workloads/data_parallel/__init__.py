"""Data-parallel replicas: gradients, their buckets, reduction and norm; sharded states and parameters, and states that
live on hosts and drives.
"""
