"""Results of a run: numbers, reports, expectations, charts, and the files that keep them."""
