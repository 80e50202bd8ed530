"""What is done to gradients in a step, as results report it."""
