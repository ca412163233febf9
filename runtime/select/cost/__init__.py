"""What a kernel costs on a problem: the analytic model and what corrects it."""
