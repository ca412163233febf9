"""Manifests: from a YAML document to a kernel set."""
