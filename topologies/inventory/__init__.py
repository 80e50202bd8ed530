"""Inventories of real servers from ``nvidia-smi topo -m`` and NCCL's topology files, converted to nodes."""
