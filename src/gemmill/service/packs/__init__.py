"""Packs that the service builds and hands out."""
