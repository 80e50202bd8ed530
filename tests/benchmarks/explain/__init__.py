"""Trials of `clustersim explain`: real steps on gloo ranks of this machine, healthy and with injected faults."""
