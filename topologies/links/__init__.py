"""Links, one kind a file: one direction of one link."""
