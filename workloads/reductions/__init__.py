"""One file is one way to reduce gradients: a function of the file's name returns a `Reduction` (bucket -> ops)."""
