"""A kernel, drawn: who holds what, what lies where in shared memory, which tile comes when."""
