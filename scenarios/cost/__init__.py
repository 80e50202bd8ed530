"""Money, energy and emissions of a training run, and published accounts of them."""
