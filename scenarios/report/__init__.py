"""One self-contained HTML page of runs, which works offline; and a local page in which a scenario is changed and
simulated again after each change, in a warm process.
"""
