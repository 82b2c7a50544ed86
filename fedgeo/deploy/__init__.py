"""Federations of real machines."""
