"""Examines the installation: what is installed, where it comes from, and what is wrong with it."""
