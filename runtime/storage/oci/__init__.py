"""Packs in OCI registries: references, manifests, credentials, the HTTP protocol, and the copies in the store."""
