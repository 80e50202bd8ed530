"""Numbers from a timeline: breakdown of the step time, memory, the pipeline bubble, the critical path, times of
operators, and traffic.
"""
