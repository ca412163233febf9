"""Which configs are kernels: rules, resources, and the nearest legal config."""
