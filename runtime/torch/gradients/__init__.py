"""Gradients of the operators: how autograd records them, and the rules that compute them."""
