"""A small node from which many tests build clusters."""

V100 = {
    "accelerator": "v100_16gb",
    "accelerators": 4,
    "intra": {"kind": "nvlink2", "shape": "full_mesh"},
    "host": {"kind": "pcie3"},
    "nics": 1,
    "nic": {"kind": "ib_edr"},
}
"""Four GPUs, each pair joined, and one NIC."""
