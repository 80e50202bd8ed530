"""Named clusters, one file each."""
