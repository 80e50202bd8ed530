"""What a rank computes and what it holds for that: activations, recomputation, optimizer and its states."""
