"""The compiled engine: a schedule is lowered to arrays, and an event loop compiled by numba runs on them."""
