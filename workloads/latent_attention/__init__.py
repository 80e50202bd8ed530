"""Multi-head latent attention: keys and values of all heads are made from one small vector for each position."""
