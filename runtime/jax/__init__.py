"""gemmill in JAX: products as calls of XLA's foreign function interface. Imported by who asks for it."""
