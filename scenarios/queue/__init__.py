"""Jobs that arrive, wait for nodes and run, as SimPy processes: the fabric below them, the scheduler, the records."""
