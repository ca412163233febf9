"""Who made what comes from elsewhere: keys, signatures, and what is signed."""
