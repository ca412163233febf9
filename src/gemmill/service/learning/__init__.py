"""What a fleet measures, and the models that come of it."""
