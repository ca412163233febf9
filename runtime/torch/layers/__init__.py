"""``gemmill.torch.Linear``, a layer with quantised weights, and ``convert``, which puts it into models."""
