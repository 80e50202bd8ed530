"""The roof: YAML scenarios, the command line, results."""
