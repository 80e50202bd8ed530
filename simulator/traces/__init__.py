"""Timelines as files for other tools: traces of Perfetto, Chrome, Kineto and Chakra, and tables of spans."""
