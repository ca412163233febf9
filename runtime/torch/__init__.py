"""gemmill in PyTorch: operators for torch.compile and export, their gradients. Imported by who asks for it."""
