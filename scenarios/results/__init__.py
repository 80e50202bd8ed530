"""Results of a run: numbers, reports, expectations, and the files that keep them."""
