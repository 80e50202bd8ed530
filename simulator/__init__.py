"""The ground of clustersim: schedules, clusters, timelines, and the engine that runs the first on the second."""
