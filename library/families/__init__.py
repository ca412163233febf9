"""The kernel families: for each, the values its fields may take and the rules its configs obey."""
