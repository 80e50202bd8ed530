"""Blocks of a layer: each file has one mixer or feed-forward network, with its keys, its operators and how it is cut."""
