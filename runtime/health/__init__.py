"""What is there, where it came from, and what is wrong with it."""
