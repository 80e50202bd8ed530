"""Algorithms on the links of a cluster: the rings and routes of a group, the loads of its transfers, and their costs."""
