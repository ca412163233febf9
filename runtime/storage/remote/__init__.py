"""A remote: compiled kernels over HTTP. A remote never costs a call more than its deadline, and its kernels only run
with a signature by a trusted key."""
