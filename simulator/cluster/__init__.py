"""Clusters: devices, links and switches as arrays, and the routes through them."""

from simulator.cluster.cluster import Cluster, Router
from simulator.cluster.links import Link

__all__ = ["Cluster", "Link", "Router"]
