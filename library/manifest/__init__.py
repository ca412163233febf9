"""Manifests: from a YAML document to a set of kernels."""
