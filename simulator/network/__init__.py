"""The network: collective algorithms, communication libraries, and the transfers that they plan."""
