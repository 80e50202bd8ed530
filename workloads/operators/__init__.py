"""One operator a file: its parameter tensors, its kernels by phase, what it keeps, and what the ranks exchange."""
