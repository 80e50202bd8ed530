"""What training does: models, pipeline orders, and one pass for each parallelism."""
