"""Methods of `clustersim plan`, one a file: ``candidates(space)`` yields the candidates of the method."""
