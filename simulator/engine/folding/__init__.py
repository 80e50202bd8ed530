"""Folding: equal ranks are simulated once, with one representative for each class. `simulator.engine.folding.folding`
has the theorem.
"""
