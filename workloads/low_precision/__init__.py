"""Products in 8 or 4 bits: recipes of scaling, and linear maps that use them."""
