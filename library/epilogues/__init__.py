"""Epilogues as expressions: what is done to each sum of products before it is stored, and what else is stored."""
