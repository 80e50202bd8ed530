"""Building turns a specification into a cluster and a schedule."""
