"""Who decides on a kernel: each names one or passes, and the first that names one is heard."""
