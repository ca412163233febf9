"""Gradients of the operators: how they are recorded, and of what they are made."""
