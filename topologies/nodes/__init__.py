"""Node shapes: how the GPUs of a server are joined; one function a file, found by its name."""
