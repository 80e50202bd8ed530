"""Numbers, text, charts and trace files from a timeline; only `plot` imports matplotlib."""
