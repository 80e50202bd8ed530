"""Offloading: states and activations in the memory of the host, or on its NVMe drives. These passes apply last."""
