"""Drawings of a kernel: ownership of elements, shared memory, and the order of tiles."""
