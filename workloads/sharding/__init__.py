"""Sharded data parallelism: parameters, gradients and optimizer states are each divided within groups of replicas."""
