"""Building turns a specification into a cluster, its network and a schedule."""
