"""Host processors, one socket a file."""
