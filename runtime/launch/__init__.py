"""Launches a kernel on operands."""
