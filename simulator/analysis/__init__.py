"""From a timeline to numbers, text, pictures and trace files; only `plot` loads matplotlib."""
