"""A training campaign: steps repeated over days on machines that fail, with checkpoints, spares and maintenance."""
