"""A schedule says what every rank does: ops, programs, the mesh, pipeline orders, matching of ops, and the check."""
