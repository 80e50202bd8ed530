"""Folding: equal ranks are simulated once, with one representative for each class (`folding` has the theorem)."""
