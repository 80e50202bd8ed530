"""One file is one way to spread a training step over ranks: its keys, its axes, its rules and its pass."""
