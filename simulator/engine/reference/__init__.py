"""The reference engine: it interprets a schedule op by op with SimPy. Every op is an event; it is made to be read."""
