"""The network: algorithms of collectives, communication libraries, and the transfers that they ask for."""
