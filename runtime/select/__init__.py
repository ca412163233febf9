"""Selects the kernel for a problem, and gives the reason."""
