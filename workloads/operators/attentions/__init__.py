"""Core attentions that do not compare each position with all others: one kind a file, and cross attention."""
