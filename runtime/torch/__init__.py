"""gemmill for PyTorch: the operators, their gradients, ``enabled``, ``convert``. ``import gemmill`` does not import
it."""
