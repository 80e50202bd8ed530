"""One file is one pipeline order: a function of the file's name from (stages, micro_batches) to an `Order`."""
