"""Methods of data parallelism that are no plain reduction of gradients in each step: local steps, servers, Horovod."""
