"""Riemannian optimisation as optax transformations."""
