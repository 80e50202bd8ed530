"""Methods of `clustersim plan`: one file each, with a function ``candidates(space)`` that yields what is to be judged.

`space` is a `scenarios.plan.space.Space`. The candidates of all methods are priced, checked and simulated in one way.
"""
