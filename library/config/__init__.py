"""The config of one kernel: its fields, their values, its name."""
