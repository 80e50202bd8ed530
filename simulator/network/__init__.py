"""The network: algorithms on the links of a cluster, communication libraries, and the transfers that they plan."""
