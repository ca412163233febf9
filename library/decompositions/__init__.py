"""Decompositions of K: how CTAs share the K of a tile, and the resulting workspace and grid."""
