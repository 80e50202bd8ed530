"""Links: one file for each kind, one direction of one link."""
