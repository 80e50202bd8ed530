"""Fabrics: what joins the NICs of a cluster; one function a file, found by its name."""
