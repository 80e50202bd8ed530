"""Models that differ from one stack of equal layers: encoder-decoders, vision, predictions of several tokens."""
