"""Legality: the rules that a config must meet to become a kernel, and the search for the nearest legal config."""
