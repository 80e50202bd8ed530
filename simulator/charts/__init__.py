"""Charts of a timeline and of results, and what they are made of: rows, colours, shades, and tables as text."""
