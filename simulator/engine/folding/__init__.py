"""Folding: equal ranks are simulated once. `folding` holds the theorem and the entry, the other files its stages.

`communications` lists who communicates, `flows` what placements on the links, `refinement` finds the classes of equals,
`partition` applies it, `rows` makes the constraints of the folded network; `non_binding` and `dominance` leave out
constraints that change nothing.
"""
