"""Measurement of devices and links, and the fit of cost parameters to the measurements."""
