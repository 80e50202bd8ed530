"""One self-contained HTML page of runs: it works offline, and a person without clustersim can read it."""
