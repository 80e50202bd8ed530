"""Files that a run leaves behind: its folder, its numbers, its charts."""
