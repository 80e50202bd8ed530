"""What both engines share: their input (rank classes, prices, variation, network) and their outcome."""
