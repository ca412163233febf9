"""gemmill for JAX: products as calls of XLA's foreign function interface. ``import gemmill`` does not import it."""
