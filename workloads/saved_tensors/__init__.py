"""Rules of what activation functions keep for the backward pass: fewer bits, or no output."""
