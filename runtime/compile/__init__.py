"""From emitted source to a cubin that is what was meant."""
