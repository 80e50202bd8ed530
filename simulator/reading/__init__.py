"""Reading of files: documents whose values know their place in a file, quantities with units, names, and text for files
and terminals.
"""
