"""Federations of real devices, and detectors on them."""
