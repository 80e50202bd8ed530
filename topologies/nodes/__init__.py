"""Node shapes, the links between the GPUs of a server: one function in a file of the same name."""
