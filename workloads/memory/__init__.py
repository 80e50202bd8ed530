"""What a rank holds: activations, recomputation, optimizer states, and shards of states."""
