"""The event engine: two interpreters of a folded schedule, and what they share: input, prices, variation, outcome."""
