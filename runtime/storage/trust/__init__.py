"""Trust: keys, signatures, and the signed descriptions of kernels and packs from elsewhere."""
