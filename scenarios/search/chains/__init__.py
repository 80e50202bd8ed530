"""What planning methods of the literature read and answer: chains of layers, machines and plans, from and as scenarios."""
