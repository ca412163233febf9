"""Epilogues as expressions: the operation on each sum of products before it is stored, and additional outputs."""
