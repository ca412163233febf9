"""Changes to a cubin after NVRTC."""
