"""One file is one pipeline order: a function of the file's name takes (stages, micro_batches) and returns an Order."""
