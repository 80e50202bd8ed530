"""Inventories of real servers, as ``nvidia-smi topo -m`` and NCCL's topology files tell of them, made into nodes."""
