"""Models and how they are trained: operators, architectures, memory, pipelines, parallelisms, software stacks."""
