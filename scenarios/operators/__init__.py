"""Time, work and saved activations of a scenario by operator: tables, numbers for JSON, and a map of activations."""
