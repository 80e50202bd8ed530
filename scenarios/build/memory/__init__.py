"""Memory of a scenario: reserved bytes, optimal recomputation, and what is offloaded."""
