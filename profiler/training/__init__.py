"""Models trained on records: the residual model, tables of the fastest kernels, decision trees."""
