"""What results are compared with and is not JAX."""
