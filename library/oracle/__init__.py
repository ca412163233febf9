"""The oracle: D to the bit on a CPU, from a model of the tensor core that was fitted to an H200."""
