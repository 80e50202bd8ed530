"""Blocks of a layer: each file has one mixer or feed-forward network, with its keys, operators and cuts."""
