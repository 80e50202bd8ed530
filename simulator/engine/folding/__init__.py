"""Folding: equal ranks are simulated once. `folding` has the theorem and the entry point. The stages are:

1. `communications`: the table of all communications, in classes of groups with the same requests.
2. `flows`: the flows of their plans, and the links that each flow crosses.
3. `refinement`: colour refinement of a labelled graph.
4. `partition`: refinement of the graph of ranks, communications, flows, links and hosts.
5. `folded_network`: one row for each class of links, one flow for each class of flows.
6. `non_binding`, `dominance`: constraints that change no rate, which are left out.
"""
