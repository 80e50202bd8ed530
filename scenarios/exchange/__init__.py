"""Import of configurations and launch scripts of training programs as scenarios, and export of scenarios to them."""
