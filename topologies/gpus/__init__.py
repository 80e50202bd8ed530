"""GPUs, one data sheet in each file."""
