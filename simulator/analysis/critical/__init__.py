"""The critical path of a simulated timeline, the causes of spans, and the slack of every span."""
