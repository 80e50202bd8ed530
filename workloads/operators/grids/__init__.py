"""Models cut over a grid of ranks: transformers in two, two and a half and three dimensions, images by a domain."""
