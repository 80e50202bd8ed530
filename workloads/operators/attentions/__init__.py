"""Core attentions: of all positions with all others, of a part of the scores, and over a sequence that is cut over
ranks.
"""
