"""Input from files that anybody may have written: what is read of it, and no more than can be meant."""
