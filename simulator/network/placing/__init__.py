"""Algorithms on the links of a cluster: rings and routes of a group, loads of its transfers, and their costs."""
