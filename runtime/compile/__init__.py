"""Compiles emitted source into a checked cubin."""
