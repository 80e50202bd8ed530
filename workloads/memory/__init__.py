"""What a rank computes and what it holds for that: activations, also on the host, recomputation, optimal sequences over
chains of layers, optimizer and its states.
"""
