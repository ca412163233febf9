"""From a kernel and operands to a launch."""
