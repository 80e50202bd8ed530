"""A sweep: runs of one scenario over values of some of its keys, with a row of numbers for each run."""
