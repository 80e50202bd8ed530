"""What a communication library adds to the wire, and how it turns collectives into plans for the network."""
