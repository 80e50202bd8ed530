"""What published planning methods read and answer: chains of layers, machines, and plans as scenarios."""
