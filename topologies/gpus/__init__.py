"""GPUs, one data sheet a file."""
