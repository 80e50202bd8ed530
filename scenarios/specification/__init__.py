"""The scenario file: its sections, where it is found, and the variants that it describes."""
