"""The operators under ``torch.vmap`` and ``torch.autocast``, and on DTensors."""
