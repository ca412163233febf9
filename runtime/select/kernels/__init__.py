"""Which kernels may support a problem: by their formats, as declared or varied; and why others do not."""
