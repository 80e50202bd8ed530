"""A network of namespaces, links and shapers on this machine, to replay schedules on."""
