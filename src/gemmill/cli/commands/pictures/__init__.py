"""Commands that show what kernels are made of."""
