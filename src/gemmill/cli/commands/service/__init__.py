"""Commands of keys, signatures and locks: what machines take from each other."""
