"""Published planning methods: each is one file with a pure function of its name, and `propose`, which all have.

``propose(problem: Problem) -> Plan`` raises `ScheduleError` if nothing fits.
"""
