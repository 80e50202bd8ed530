"""The critical path of a simulated timeline, the causes that it is read from, and the slack of every span."""
