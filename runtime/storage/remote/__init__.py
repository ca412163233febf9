"""A remote: kernels over HTTP, from who has compiled them already. Nothing that it does costs a call more than its
deadline, or has a byte run that no trusted key has signed."""
