"""A small server that many tests wire clusters of."""

V100 = {
    "accelerator": "v100_16gb",
    "accelerators": 4,
    "intra": {"kind": "nvlink2", "shape": "full_mesh"},
    "host": {"kind": "pcie3"},
    "nics": 1,
    "nic": {"kind": "ib_edr"},
}
"""Four GPUs joined pair by pair, and one NIC."""
