"""What is done to a cubin after NVRTC made it."""
