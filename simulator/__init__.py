"""The base of clustersim: schedules, clusters, timelines, and the engine that simulates a schedule on a cluster."""
