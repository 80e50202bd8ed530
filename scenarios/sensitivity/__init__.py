"""How the step time changes with each parameter of the machine, and what would help most."""
