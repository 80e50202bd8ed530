"""Published planning methods: each is one file with one pure function from layers and a machine to a `Plan`."""
