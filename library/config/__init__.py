"""The config of a kernel: its fields, their values and its name."""
