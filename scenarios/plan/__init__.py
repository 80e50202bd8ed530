"""Planning: which strategy to choose for a model on a cluster."""
