"""What fabrics and node shapes are made of: the network between NICs with its routing, and the wiring of a server."""
