"""The search for a plan: planner, estimates and bounds, published methods, ranking, advice; and sensitivity."""
