"""The kernel families, each with the values that its fields can have and the rules that its configs meet."""
