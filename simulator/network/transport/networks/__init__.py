"""What NCCL takes on networks of other kinds than plain InfiniBand: switches that add, and TCP."""
