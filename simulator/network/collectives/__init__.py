"""One file is one algorithm, one function one collective; the folder is what the tuner chooses from.

A file offers the functions of those collectives that its algorithm has: `all_reduce`, `all_gather`, `reduce_scatter`
and `all_to_all` take (group, nbytes), the rooted `broadcast`, `reduce`, `gather` and `scatter` also root. Within the
vector the block of position i is the i-th of *size* equal ones, whatever the order in which a ring runs.
"""
