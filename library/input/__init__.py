"""Readers of untrusted input, with limits on size and checks of every value."""
