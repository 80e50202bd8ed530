"""The event engine: `simulate` folds equal ranks, runs one of two interpreters, and makes the timeline."""
