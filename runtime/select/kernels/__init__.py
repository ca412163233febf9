"""Which kernels may serve a problem: by formats, as they are or varied, and what the others want."""
