"""The second half of `simulate`: rank processes, rendezvous, the network, fairness."""
