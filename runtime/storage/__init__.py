"""Compiled kernels on disk: artifacts, the store, packs."""
