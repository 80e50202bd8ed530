"""Mixture of experts: a router sends each token to a few of many feed-forward networks, which live on several ranks."""
