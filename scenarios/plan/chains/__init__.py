"""What planning methods read and answer: chains of layers, machines and plans, from scenarios and as scenarios."""
