"""Named clusters, one a file."""
