"""What else PyTorch makes of a call of an operator: vmap, autocast, DTensors."""
