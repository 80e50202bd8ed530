"""One file is one algorithm, one function is one collective. The tuner chooses among the files of this folder.

`all_reduce`, `all_gather`, `reduce_scatter` and `all_to_all` take (group, nbytes). `broadcast`, `reduce`, `gather` and
`scatter` take root as well. The vector has *size* equal blocks; position i owns block i, whatever the order of a ring.
"""
