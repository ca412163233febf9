"""gemmill in Inductor: a graph pass that replaces products by gemmill's operators, and a choice for its autotuner."""
