"""Formats that can be imported, one a file: ``recognises(source)`` and ``read(source, facts)``."""
