"""Where training runs: the hardware catalogue, node shapes, fabrics and named clusters."""
