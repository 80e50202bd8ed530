"""Methods of data parallelism beside plain reduction: local steps, servers, Horovod."""
