"""Schedules on real devices: replay on torch.distributed, a network of namespaces, measurements and fits of them."""
