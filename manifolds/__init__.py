"""manifolds."""
