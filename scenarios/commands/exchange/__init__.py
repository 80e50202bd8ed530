"""Commands that read files of other programs, or write them."""
