"""Communication libraries: their costs and choices, version by version, their calibrations, and the communicator, which
makes plans for the network by them.
"""
