"""Checkers that a manifold can be run through; each returns numbers."""
